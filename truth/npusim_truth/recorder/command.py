# SPDX-License-Identifier: BSD-3-Clause
"""The command: asks for a GPU, records section by section, writes the archive."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys

from . import __doc__ as summary
from . import acceptance, allocation, answers, batches, collectives, identity, rates, steps
from .batches import BATCHES, SECTIONS, Options
from .device import is_simulated
from .journal import read_answers, write_archive
from .privacy import scrub
from .workers import answer, record, work

#: Each registers its batches.
MODULES = (identity, acceptance, allocation, rates, steps, answers, collectives)


def missing() -> str:
    """Returns what this machine lacks, in a sentence; "" if there is a device."""
    try:
        import torch
    except ImportError:
        return "torch is not installed: pip install torch"
    numbers = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
    if numbers < (2, 5):
        return f"torch {torch.__version__} is too old: 2.5 or newer is needed"
    if not (torch.version.cuda or torch.version.hip):
        return f"torch {torch.__version__} is built without CUDA and without ROCm"
    if is_simulated():
        return ""
    question = "import torch; torch.ones(1, device='cuda').sum().item()"
    try:
        words = [sys.executable, "-W", "ignore", "-c", question]
        asked = subprocess.run(words, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return "the GPU did not answer within two minutes"
    if asked.returncode:
        lines = asked.stderr.strip().splitlines() or ["no words"]
        kind = "CUDA " + torch.version.cuda if torch.version.cuda else "ROCm"
        return f"torch {torch.__version__} ({kind}) finds no GPU that works: {scrub(lines[-1])}"
    return ""


def memory(text: str) -> int:
    """Returns the bytes of a text such as 6GiB."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) *([KMGT]?)(?:i?B)?", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 6GiB")
    return int(float(found[1]) * 1024 ** " KMGT".index(found[2] or " "))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(summary or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10, help="how long at most (default 10)")
    parser.add_argument(
        "--memory", type=memory, default="6GiB", help="of the device, at most (6GiB)"
    )
    parser.add_argument("--sections", default=",".join(SECTIONS), help="default: %(default)s")
    parser.add_argument("--sample", type=int, default=1, help="ask one question in so many")
    parser.add_argument(
        "--jobs", type=int, default=1, help="workers side by side, where nothing is timed (1)"
    )
    parser.add_argument("--work", default="truth-work", help="folder of the journal (truth-work)")
    parser.add_argument("--out", help="the archive (default: named after chip and torch)")
    parser.add_argument(
        "--ask", metavar="KEY", help="ask one question, print the answer, write nothing"
    )
    for hidden in ("--worker", "--deadline", "--options", "--batches"):
        parser.add_argument(hidden, default="", help=argparse.SUPPRESS)
    return parser


def ask_one(key: str) -> int:
    """Asks one question in this process and prints the answer."""
    for name, its in BATCHES.items():
        for of, question in its.make():
            if key in (of, its.section + "|" + of):
                if any(os.environ.get(k) != v for k, v in its.env.items()):
                    os.environ.update(its.env)
                    os.execv(sys.executable, [sys.executable, *batches.LAUNCH, *sys.argv[1:]])
                with (batches.AROUND.get(name) or contextlib.nullcontext)():
                    print(json.dumps(answer(question)[0], indent=1))
                return 0
    print(f"there is no question {key!r}")
    return 2


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns 0, or 1 where nothing can be recorded, or 2 for a wrong command."""
    options = _parser().parse_args(arguments)
    batches.OPTIONS = Options(options.minutes, options.memory, options.sample, options.jobs)
    if options.worker:
        *known, turn = json.loads(options.options)
        batches.OPTIONS = Options(*known)
        return work(options.worker, options.work, float(options.deadline), turn)
    chosen = options.sections.split(",")
    if unknown := [name for name in chosen if name not in SECTIONS]:
        print(f"there is no section {unknown[0]}; there are {', '.join(SECTIONS)}")
        return 2
    if problem := missing():
        print("truth_record: " + problem)
        return 1
    if options.ask:
        return ask_one(options.ask)
    os.makedirs(options.work, exist_ok=True)
    kept = os.path.join(options.work, "options.json")
    asked = json.dumps([batches.OPTIONS.memory, batches.OPTIONS.sample])
    if os.path.exists(kept) and open(kept).read() != asked:
        print(f"{options.work} holds a recording with other options: finish it, or remove it")
        return 2
    with open(kept, "w") as file:
        file.write(asked)
    record(options.work, chosen, options.batches)
    of = read_answers(options.work).get("identity", {"answers": {}})["answers"]
    words = ["truth", of.get("chip", "unknown"), "torch", of.get("torch", "")]
    name = re.sub(r"[^\w.+]+", "-", "-".join(map(str, words))).lower() + ".zip"
    made = write_archive(options.out or name, options.work)
    counts = [f"{s} {len(its['answers'])}" for s, its in made["sections"].items()]
    print(f"{options.out or name}: {', '.join(counts)}")
    shutil.rmtree(options.work)
    return 0


def run() -> None:
    """Ends the process with the status of the command: where the archive begins."""
    sys.exit(main())
