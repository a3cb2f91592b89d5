# SPDX-License-Identifier: BSD-3-Clause
"""Records the corpus of real models anew.

    pip install -r tools/recordings/requirements.txt --no-deps
    python tools/recordings/record.py [NAME...]

writes lab/npusim_lab/recorded/NAME.npt. Each program runs on npusim in a process of its own, and
its replay must place every block as the run did.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from programs import PROGRAMS

from npusim_lab.corpus import LICENCE
from npusim_lab.files import load, save
from npusim_lab.matching import agreement
from npusim_lab.recording import record_script, replay_recorded
from npusim_lab.trace import Trace

FRAMES = 4  # of a stack that are kept, the innermost ones
OUT = Path(__file__).resolve().parents[2] / "lab" / "npusim_lab" / "recorded"


def shortened(trace: Trace) -> Trace:
    """Return the trace with the innermost frames of its stacks, and file names without folders."""
    stacks = tuple(
        tuple((Path(file).name, line, function) for file, line, function in stack[:FRAMES])
        for stack in trace.stacks
    )
    return replace(trace, stacks=stacks)


def main() -> None:
    """Record all programs, or those that are named."""
    OUT.mkdir(exist_ok=True)
    for name in sys.argv[1:] or PROGRAMS:
        trace = record_script(Path(__file__).with_name("programs.py"), [name])
        if trace.info["exit_status"] != 0:
            raise SystemExit(f"{name} ended with status {trace.info['exit_status']}")
        about = (PROGRAMS[name].__doc__ or "").strip()
        trace = shortened(trace).with_info(
            source="npusim run", program=name, about=about, licence=LICENCE
        )
        path = OUT / f"{name}.npt"
        save(trace, path)
        again = load(path)
        same = agreement(again, replay_recorded(again))
        if same.equal < same.compared or same.compared == 0:
            raise SystemExit(f"{name}: {same}")
        print(f"{name}: {len(trace)} events, {path.stat().st_size} bytes, {same}", flush=True)


if __name__ == "__main__":
    main()
