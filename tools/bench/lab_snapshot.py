# SPDX-License-Identifier: BSD-3-Clause
"""Makes a memory snapshot of any size, in the layout of torch's, to measure how it is imported.

    python tools/bench/lab_snapshot.py big.pickle --megabytes 500 --protocol 4

A training loop over layers: activations come and go, weights stay, two streams, Python stacks of 20
frames of which torch shares the frames but not the lists. It takes about six times the file in
memory to make one.
"""

import argparse
import gc
import pickle
import random
from pathlib import Path
from typing import Any

BYTES_PER_ENTRY = {2: 196, 3: 196, 4: 170, 5: 170}  # of the file, about
DEPTH = 20


def make_snapshot(entries: int, seed: int = 0) -> dict[str, Any]:
    """Returns what torch.cuda.memory._snapshot() returns after so many entries, about."""
    random_source = random.Random(seed)
    frames = [
        {"filename": f"/job/model/layer{i % 97}.py", "line": i, "name": f"forward_{i % 311}"}
        for i in range(2000)
    ]
    stacks = [[random_source.choice(frames) for _ in range(DEPTH)] for _ in range(500)]
    history: list[dict[str, Any]] = []
    live: list[tuple[int, int, list[Any]]] = []
    address = base = 0x7F0000000000
    clock = 1_700_000_000_000_000

    def add(action: str, addr: int, size: int, stack: list[Any]) -> None:
        nonlocal clock
        clock += random_source.randrange(1, 90)
        history.append(
            {
                "action": action,
                "addr": addr,
                "size": size,
                "stream": 0 if size % 3 else 0x7F11_2233_4455,
                "time_us": clock,
                "compile_context": "N/A",
                "user_metadata": "",
                "pool_id": (0, 0),
                "frames": list(stack),
            }
        )

    while len(history) < entries:
        if len(live) < 2000 or random_source.random() < 0.3:
            size = random_source.randrange(1, 40000) * 512
            stack = random_source.choice(stacks)
            if address + size > base + (1 << 40):
                address = base
            add("alloc", address, size, stack)
            live.append((address, size, stack))
            address += size
        else:
            at = random_source.randrange(len(live))
            live[at], live[-1] = live[-1], live[at]
            freed = live.pop()
            add("free_requested", *freed)
            add("free_completed", *freed)
    blocks = [
        {"address": a, "size": s, "requested_size": s, "state": "active_allocated", "frames": f}
        for a, s, f in sorted(live, key=lambda block: block[0])
    ]
    segment = {
        "device": 0,
        "address": base,
        "total_size": 1 << 40,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": True,
        "frames": [],
        "blocks": blocks,
    }
    return {
        "segments": [segment],
        "device_traces": [history],
        "allocator_settings": {"expandable_segments": True},
        "external_annotations": [],
    }


def write_snapshot(path: Path, megabytes: int, protocol: int = 4, seed: int = 0) -> None:
    """Writes a snapshot of about so many megabytes."""
    gc.disable()  # nothing here is garbage
    entries = int(megabytes * 1e6 / BYTES_PER_ENTRY[protocol])
    with path.open("wb") as file:
        pickle.dump(make_snapshot(entries, seed), file, protocol=protocol)
    gc.enable()


def main() -> None:
    """Writes the file that the command line asks for."""
    parser = argparse.ArgumentParser(description="Makes a memory snapshot in torch's layout.")
    parser.add_argument("path", type=Path)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--protocol", type=int, choices=sorted(BYTES_PER_ENTRY), default=4)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    write_snapshot(asked.path, asked.megabytes, asked.protocol, asked.seed)


if __name__ == "__main__":
    main()
