# SPDX-License-Identifier: BSD-3-Clause
"""The parallel wing of the museum: what gloo on CPU says of wrong parallel programs, what npusim.

    python tools/museum/run_parallel.py                         the table, for all exhibits
    python tools/museum/run_parallel.py --only wrong_group      some of them, in full
    python tools/museum/run_parallel.py --json --subject npusim what one of them says
    python tools/museum/run_parallel.py --page docs/reference/bug_museum.md   write the table

Each variant runs on two ranks, threads of this process. The exit status is 1 if npusim stops a
fixed variant, or misses a wrong one unexpectedly.
"""

import argparse
import gc
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("NPUSIM_DEVICE_COUNT", "2")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.distributed as dist

from examples.bug_museum.exhibit import PARALLEL, VARIANTS, Exhibit, load, names
from torch_npusim import npusim
from torch_npusim.testing.ranks import RanksFailed, run_ranks

RANKS = 2
LIMIT_S = 3.0
SUBJECTS = {"gloo": "cpu", "npusim": "npusim"}
BEGIN = "<!-- begin: written by python tools/museum/run_parallel.py --page -->"
END = "<!-- end of the parallel wing -->"


class Found(Exception):
    """Report of one of npusim's checks."""


def _collectives_of(step: Callable[[], object]) -> int:
    group: Any = dist.distributed_c10d._get_default_group()._get_backend(torch.device("npusim"))
    step()
    step()  # DDP has made its final buckets
    before = group._get_sequence_number_for_group()
    step()
    return int(group._get_sequence_number_for_group() - before)


def _bytes_held_by(build: Callable[[], object]) -> int:
    before = npusim.memory_allocated()
    kept = build()
    gc.collect()
    held = npusim.memory_allocated() - before
    del kept
    return held


def _be_rank(exhibit: Exhibit, variant: str, subject: str) -> None:
    use = exhibit.variants[variant](SUBJECTS[subject])
    if exhibit.check == "raises":
        return
    assert use is not None
    if subject == "gloo":  # nobody watches
        use()
    elif exhibit.check == "collectives":
        taken = _collectives_of(use)
        if taken > exhibit.most:
            raise Found(f"{taken} collectives a step where {exhibit.most} would do")
    else:
        held = _bytes_held_by(use)
        if held > exhibit.most:
            raise Found(f"{held >> 10} KiB of the device are held, {exhibit.most >> 10} would do")


def _first_line(failure: BaseException) -> str:
    """The raised error, without what differs from run to run: files, ports and times."""
    lines = str(failure).splitlines() or [""]
    text = re.sub(r"\[?/?\S*/gloo/\S*\]? ?", "", lines[0])
    text = re.sub(r" ?\[?(127\.0\.0\.1|::1|0\.0\.0\.0)\]?:\d+", "", text)
    text = re.sub(r"\bran for \d+ milliseconds", "ran for ... milliseconds", text)
    text = re.sub(r" at \S+\.py:\d+", "", text)
    return f"{type(failure).__name__}: {text}"


def examine(exhibit: Exhibit, variant: str, subject: str) -> str:
    """Returns what stopped a variant on a subject, as the lowest rank that was stopped puts it."""
    gc.collect()
    before = npusim.get_race_detection()
    npusim.set_race_detection("error")
    try:
        run_ranks(
            _be_rank,
            RANKS,
            exhibit,
            variant,
            subject,
            timeout=LIMIT_S if variant == "wrong" and exhibit.check == "raises" else 60.0,
            backend="gloo" if subject == "gloo" else exhibit.backend,
        )
    except RanksFailed as failed:
        return _first_line(failed.failures[min(failed.failures)])
    finally:
        npusim.set_race_detection(before)
    return ""


def examine_in_process(exhibit: Exhibit, variant: str) -> str:
    """Does the same with gloo, which may end the process."""
    command = [sys.executable, __file__, "--json", "--subject", "gloo", "--only", exhibit.name]
    done = subprocess.run(
        [*command, "--variant", variant], capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode < 0:
        said = [line for line in done.stderr.splitlines() if "what():" in line]
        return f"killed by {signal.Signals(-done.returncode).name}" + (
            f": {said[0].split('] ', 1)[-1]}" if said else ""
        )
    found: dict[str, dict[str, dict[str, str]]] = json.loads(done.stdout)
    return found[exhibit.name][variant]["gloo"]


def visit(
    chosen: list[str], subjects: list[str], variants: Sequence[str] = VARIANTS
) -> dict[str, dict[str, dict[str, str]]]:
    """Returns for each exhibit and variant what stopped it, by subject."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for exhibit in (load(name, PARALLEL) for name in chosen):
        found[exhibit.name] = {
            variant: {
                subject: examine_in_process(exhibit, variant)
                if subject == "gloo" and len(subjects) > 1
                else examine(exhibit, variant, subject)
                for subject in subjects
            }
            for variant in variants
        }
    return found


def as_expected(name: str, found: dict[str, dict[str, str]]) -> bool:
    """Returns whether npusim stops the wrong variant alone, or misses it and says why."""
    missed = bool(load(name, PARALLEL).missed)
    return bool(found["wrong"]["npusim"]) != missed and not found["fixed"]["npusim"]


def _short(text: str) -> str:
    if not text:
        return "nothing"
    text = text.replace("|", "/")
    return text if len(text) <= 120 else text[:117] + "..."


def rows(found: dict[str, dict[str, dict[str, str]]]) -> list[str]:
    """Returns one line of the table for each exhibit."""
    lines = []
    for exhibit in sorted(
        (load(name, PARALLEL) for name in found), key=lambda one: (one.theme, one.name)
    ):
        wrong = found[exhibit.name]["wrong"]
        repository, _, number = exhibit.link.removeprefix("https://github.com/").rsplit("/", 2)
        npusim_says = _short(wrong["npusim"]) if not exhibit.missed else f"missed: {exhibit.missed}"
        lines.append(
            f"| [{exhibit.name}](../../examples/bug_museum/parallel/{exhibit.name}.py) "
            f"| {exhibit.title} | {_short(wrong.get('gloo', ''))} | {npusim_says} "
            f"| [{repository} {number}]({exhibit.link}) |"
        )
    return lines


def table(found: dict[str, dict[str, dict[str, str]]]) -> str:
    """Returns the table and its count in Markdown."""
    caught, by_gloo = (
        sum(bool(of["wrong"].get(subject)) for of in found.values())
        for subject in ("npusim", "gloo")
    )
    return "\n".join(
        [
            f"Of {len(found)} wrong programs npusim stops {caught}; it stops none of their twins. "
            f"On CPU gloo stops {by_gloo}.",
            "",
            "| exhibit | | CPU and gloo | npusim | kind of issue |",
            "|---|---|---|---|---|",
            *rows(found),
        ]
    )


def main() -> int:
    """Runs what the command line asks for; returns the exit status."""
    parser = argparse.ArgumentParser(description="What gloo and npusim say of parallel bugs.")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these exhibits; default: all")
    parser.add_argument("--subject", choices=SUBJECTS, action="append", help="default: both")
    parser.add_argument("--variant", choices=VARIANTS, action="append", help="default: both")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("--page", type=Path, help="write the table between the marks of this file")
    asked: Any = parser.parse_args()
    torch.set_num_threads(1)
    found = visit(
        asked.only or names(PARALLEL), asked.subject or list(SUBJECTS), asked.variant or VARIANTS
    )
    if asked.json or asked.only:
        print(json.dumps(found, indent=1))
    elif asked.page:
        head, rest = asked.page.read_text().split(BEGIN)
        asked.page.write_text(f"{head}{BEGIN}\n\n{table(found)}\n\n{END}{rest.split(END)[1]}")
    else:
        print(table(found))
    if asked.variant or "npusim" not in (asked.subject or SUBJECTS):
        return 0
    return 0 if all(as_expected(name, of) for name, of in found.items()) else 1


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # ranks that hang in gloo are left behind
