# SPDX-License-Identifier: BSD-3-Clause
"""Runs imitated reports of failures, and judges what `npusim-lab explain` says of them.

python -m claims.reports            every report: cause, advice, whether twin and setting run
python -m claims.reports adam       reports whose name has the word, with the verdict
python -m claims.reports --write    keeps the traces
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from claims.reports import RECORDED, judged, names, report
from npusim_lab import Trace, explain, load
from npusim_lab.files import save

_CHILD = """
import sys, torch
from claims.reports import report
torch.cuda.init()
torch.cuda.memory._record_memory_history(stacks="python")
try:
    report(sys.argv[1]).program(sys.argv[2] == "True")
except torch.OutOfMemoryError as error:
    print(error)
    sys.exit(3)
finally:
    torch.cuda.memory._dump_snapshot(sys.argv[3])
"""


def run(name: str, mended: bool, memory: int, setting: str = "") -> tuple[str, Trace]:
    """Returns the text of a program's error, and its trace.

    Raises:
        RuntimeError: If it fails otherwise than out of memory.
    """
    settings = {
        "NPUSIM_AS_CUDA": "1",
        "NPUSIM_DRY_RUN": str(int(getattr(report(name), "DRY", False))),
        "NPUSIM_ALLOCATOR": "cuda-2.13",
        "NPUSIM_DEVICE_MEMORY": str(memory),
        "PYTORCH_ALLOC_CONF": setting,
    }
    with tempfile.TemporaryDirectory() as folder:
        snapshot = Path(folder, "snapshot.pickle")
        command = [sys.executable, "-c", _CHILD, name, str(mended), str(snapshot)]
        env = {**os.environ, **settings}
        done = subprocess.run(command, env=env, check=False, stdout=subprocess.PIPE, text=True)
        if done.returncode not in (0, 3):
            raise RuntimeError(f"{name}, mended: {mended}, ends with {done.returncode}")
        return done.stdout, load(snapshot, capacity_bytes=report(name).MEMORY)


def main() -> int:
    """Runs what the command line asks for; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m claims.reports")
    parser.add_argument("words", nargs="*")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    chosen = [name for name in names() if not asked.words or any(w in name for w in asked.words)]
    right = 0
    for name in chosen:
        of = report(name)
        outside = getattr(of, "OUTSIDE", 0)
        error, trace = run(name, False, of.MEMORY - outside)
        twins, _ = run(name, True, of.MEMORY, getattr(of, "SETTING", ""))
        answer = explain(trace, quick=True)
        score = judged(name, answer)
        advised = re.search(r"PYTORCH_ALLOC_CONF=(\S+)", answer["sentences"][1])
        again = advised and run(name, False, of.MEMORY - outside, advised[1])[0]
        right += score == "right" and bool(error) and not twins and not again
        live = f"the error says: {''.join(re.findall('Cause: ([^.]+)', error))}"
        notes = {"does not fail": not error, "the twin fails": twins, "advice fails": again}
        notes[live] = f"Cause: {answer['cause']}." not in error
        print(f"{score:6} {name}", *(note for note, is_so in notes.items() if is_so), sep=": ")
        if asked.words or score != "right":
            print(*(f"       {line}" for line in answer["sentences"]), sep="\n")
        if asked.write:
            save(trace, RECORDED / f"{name}.npt")
    print(f"{right} of {len(chosen)}")
    return int(right < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
