# SPDX-License-Identifier: BSD-3-Clause
"""The cost of dry runs to a program that makes none: small operators, where one look would show.

    python tools/bench/dry_off.py                     a minute; processor time of one core
    python tools/bench/dry_off.py --against PYTHON    beside another build's interpreter

Three processes take turns in short blocks (measure.py): one has ended a dry run, two have never
made one. The first is compared with the second, and so is the third: two processes of one program
differ by some percent, and the first quotient says something where it leaves those of the second.
With --against the first is a process of another interpreter, say of an environment with the
release before, that has made no dry run either.
"""

import argparse
import subprocess
import sys
import time
from types import SimpleNamespace

from measure import Effort, quotient, take_turns

STATEMENTS = {
    "sum of two, 2 x 2": "x + y",
    "in place": "x.add_(y)",
    "conversion": "x.double()",
    "reduction": "x.sum()",
    "product": "x @ y",
    "indices": "x[i]",
    "convolution, 1 x 8 x 8 x 8": "f.conv2d(p, w, padding=1)",
}
EFFORT = Effort(blocks=40, block_s=0.02)


class Process:
    """A process that runs statements when it is asked."""

    def __init__(self, python: str, *, was_dry: bool) -> None:
        words = [python, __file__, "--serve", str(int(was_dry))]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def timer(self, statement: str) -> SimpleNamespace:
        """Returns what has the method of torch's Timer that take_turns() calls."""

        def timeit(number: int) -> SimpleNamespace:
            print(number, statement, file=self._process.stdin)
            return SimpleNamespace(mean=float(self._process.stdout.readline()) / number)

        return SimpleNamespace(timeit=timeit)


def serve(was_dry: bool) -> None:
    """Answers lines of a number and a statement with the seconds that so many runs took."""
    import torch
    import torch.nn.functional as functional

    import torch_npusim.sim

    torch.set_num_threads(1)
    if was_dry:
        with torch_npusim.sim.dry_run():
            layer = torch.nn.Linear(4, 4, device="npusim")
            layer(torch.ones(4, 4, device="npusim")).sum().backward()
    names = {
        "x": torch.ones(2, 2, device="npusim"), "y": torch.zeros(2, 2, device="npusim"),
        "i": torch.zeros(2, dtype=torch.int64, device="npusim"), "f": functional,
        "p": torch.ones(1, 8, 8, 8, device="npusim"), "w": torch.ones(8, 8, 3, 3, device="npusim"),
    }  # fmt: skip
    for line in sys.stdin:
        number, _, statement = line.strip().partition(" ")
        code = compile(f"for _ in range({int(number)}): {statement}", "statement", "exec")
        begun = time.process_time()
        exec(code, names)
        print(time.process_time() - begun, flush=True)


def main() -> None:
    """Prints a row per statement."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", metavar="PYTHON", help="another interpreter")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve is not None:
        serve(bool(chosen.serve))
        return
    processes = {
        "first": Process(chosen.against or sys.executable, was_dry=not chosen.against),
        "second": Process(sys.executable, was_dry=False),
        "third": Process(sys.executable, was_dry=False),
    }
    for name, statement in STATEMENTS.items():
        sides = {side: process.timer(statement) for side, process in processes.items()}
        found = take_turns(sides, EFFORT)
        texts = []
        for side in ("first", "third"):
            one = quotient(found[side], found["second"])
            texts.append(f"{one.value:.3f} ({one.low:.3f} to {one.high:.3f})")
        print(f"{name:28} {texts[0]}; alike {texts[1]}; {one.theirs_ns / 1000:.2f} us")


if __name__ == "__main__":
    main()
