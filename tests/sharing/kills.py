# SPDX-License-Identifier: BSD-3-Clause
"""Tensors between processes of which exporters are killed at random; nothing may be left behind.

    python tests/sharing/kills.py --tensors 1000 --processes 4 --seed 0

Each tensor goes from one process to another. Sometimes its exporter is killed before the message is
received, which must then say so, or afterwards, when the values must still be there. At the end
every process has let go: what is allocated, mapped, open and in the exporters' files is counted.
"""

import argparse
import contextlib
import os
import pickle
import random
import re
import sys
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # as pytest has it

import torch
from sharing import partners
from sharing.partners import Partner, PartnerError

KILLS = 0.05  # of the tensors
KEPT = 20  # tensors that a process keeps of others, at most


def export(numel, value, keep):
    """A message about a new tensor, of which the exporter keeps a reference or none."""
    x = torch.full((numel,), value, device="npusim")
    message = bytes(ForkingPickler.dumps(x))
    if keep:
        partners.kept[f"own {value}"] = x
    return message


def receive(message, numel, value, forget):
    """Takes a tensor, looks at its values, changes them and keeps it."""
    x = pickle.loads(message)
    assert x.shape == (numel,), "not what was sent"
    assert x.eq(value).all().item(), "not what was sent"
    x.add_(1)
    partners.kept[f"received {value}"] = x
    names = [name for name in partners.kept if name.startswith("received")]
    for name in names[: max(0, len(names) - KEPT)] + names[:forget]:
        partners.kept.pop(name, None)


def still_there():
    """How many of the tensors kept have the values that were written last."""
    for name, x in partners.kept.items():
        value = float(name.split()[1])
        assert x.eq(value + 1).all().item() or name.startswith("own"), name
    return len(partners.kept)


def left():
    """Holdings of this process after it has released everything."""
    partners.drop()
    torch.npusim.empty_cache()
    maps = Path("/proc/self/maps").read_text()
    files = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    own = [os.stat(file) for file in files if "npusim_device" in _link(file)]
    return {
        "allocated": torch.npusim.memory_allocated(),
        "reserved": torch.npusim.memory_reserved(),
        "mappings": len(re.findall("memfd:npusim_device", maps)),
        "files of others": max(0, len(own) - 1),
        "bytes in the file": max([0, *(file.st_blocks * 512 for file in own)]) // 65536,
        "descriptors": len(files) - len(own),
    }


def _link(file):
    with contextlib.suppress(OSError):
        return os.readlink(file)
    return ""


NOTHING = {
    "allocated": 0,
    "reserved": 0,
    "mappings": 0,
    "files of others": 0,
    "bytes in the file": 0,
}


def run(context, *, tensors, processes, seed):
    """Runs it; returns how many were killed, and what each survivor had left."""
    draw = random.Random(seed)
    members = [Partner(context) for _ in range(processes)]
    descriptors = [member.call(left)["descriptors"] for member in members]
    kills = 0
    try:
        for number in range(tensors):
            source, target = draw.sample(range(processes), 2)
            exporter, importer = members[source], members[target]
            numel, keep = draw.choice([1, 100, 5000, 400_000]), draw.random() < 0.5
            message = exporter.call(export, numel, float(number), keep)
            fate = draw.random() / KILLS  # below 1 it is killed
            expected = None
            if fate < 0.5:
                exporter.kill()
                expected = "has ended before it was received"
            try:
                importer.call(receive, message, numel, float(number), draw.choice([0, 0, 3]))
            except PartnerError as error:
                if expected is None or expected not in str(error):
                    raise
            else:
                assert expected is None, "a tensor came out of nowhere"
            if 0.5 <= fate < 1:
                exporter.kill()
                importer.call(still_there)
            if fate < 1:
                kills += 1
                members[source] = Partner(context)
                descriptors[source] = members[source].call(left)["descriptors"]
        for member in members:
            member.call(still_there)
        for member in members:  # all let go before any looks at what it sent
            member.call(partners.drop)
        found = [member.call(left) for member in members]
        for expected, member in zip(descriptors, found, strict=True):
            member["descriptors"] -= expected
        return kills, found
    finally:
        for member in members:
            member.kill()


def main():
    """The command."""
    import rank_processes

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tensors", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    arguments = vars(parser.parse_args())
    kills, found = run(rank_processes.context(), **arguments)
    print(f"{arguments['tensors']} tensors, {kills} exporters killed")
    for number, member in enumerate(found):
        print(number, member)
    sys.exit(any(member != {**NOTHING, "descriptors": 0} for member in found))


if __name__ == "__main__":
    main()
