# SPDX-License-Identifier: BSD-3-Clause
"""The bug museum: who catches bugs that pass on the CPU?

    python tools/museum/run.py                              the table, for all exhibits
    python tools/museum/run.py --only edit_through_numpy    some of them, with messages
    python tools/museum/run.py --json                       everything, for programs
    python tools/museum/run.py --page docs/reference/bug_museum.md    write the table

Every wrong and every fixed variant runs on plain CPU, on the meta device, under FakeTensorMode and
on npusim. The exit status is 1 if npusim stops a fixed variant, or misses a wrong one unexpectedly.
"""

import argparse
import gc
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("NPUSIM_DEVICE_COUNT", "2")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from museum import report
from museum.harness import SUBJECTS, examine_in_child
from torch._subclasses.fake_tensor import FakeTensorMode

from examples.bug_museum.exhibit import VARIANTS, load, names


def arguments() -> argparse.Namespace:
    """Returns what the command line asks for."""
    parser = argparse.ArgumentParser(description="Shows who catches the bugs of the museum.")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these exhibits; default: all")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("--page", type=Path, help="write the table between the marks of this file")
    return parser.parse_args()


def visit(chosen: list[str]) -> list[report.Finding]:
    """Runs both variants of the exhibits on all subjects, each in a process of its own.

    The processes are forks of this one, which has imported torch and used no device: no verdict
    depends on what ran before.
    """
    with FakeTensorMode():
        torch.ones(1) + 1  # imports modules that take a second, for all children at once
    gc.collect()
    gc.freeze()
    findings = []
    for exhibit in map(load, chosen):
        stopped = {
            variant: {
                subject: examine_in_child(exhibit.name, variant, subject) for subject in SUBJECTS
            }
            for variant in VARIANTS
        }
        findings.append(report.Finding.of(exhibit, stopped))
    return sorted(findings, key=lambda finding: (finding.theme, finding.name))


def main() -> int:
    """Runs what the command line asks for; returns the exit status."""
    asked = arguments()
    torch.set_num_threads(1)
    sys.unraisablehook = lambda _: None  # loaders that could not start complain again when they go
    findings = visit(asked.only or names())
    if asked.page:
        report.write(asked.page, findings)
    elif asked.json:
        print(json.dumps([finding.as_dict() for finding in findings], indent=1))
    elif asked.only:
        print(report.messages(findings))
    else:
        print(report.tables(findings))
    return 0 if all(finding.as_expected() for finding in findings) else 1


if __name__ == "__main__":
    sys.exit(main())
