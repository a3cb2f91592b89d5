# SPDX-License-Identifier: BSD-3-Clause
"""Measures npusim against the CPU backend, side by side in one process.

    python tools/bench/run.py                                  everything, about six idle minutes
    python tools/bench/run.py --only elementwise reductions    some groups
    python tools/bench/run.py --quick --json build/bench/quick.json
    python tools/bench/run.py --only elementwise --rows 20     the 20 worst rows of each group
    python tools/bench/run.py --only training --update FILE    some groups of an earlier run again

`make bench` writes build/bench/results.json and the tables of docs/reference/performance.md.
"""

import argparse
import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import alias, children, compiled, diagnosis, distributed, machine, plan, report, sharing

MEASUREMENTS = {
    "noise": plan.noise,
    "elementwise": plan.elementwise,
    "vector_functions": plan.vector_functions,
    "reductions": plan.reductions,
    "large": plan.large,
    "tuned": children.tuned_malloc,
    "route_iii": plan.route_iii,
    "copies": plan.copies,
    "custom_operator": plan.custom_operator,
    "training": plan.training_steps,
    "training_small": plan.small_training_step,
    "races": plan.race_detection,
    "compiled": compiled.compiled,
    "compile_time": compiled.compile_time,
    "distributed": distributed.collectives,
    "passive": children.passive_training,
    "alias": alias.alias_and_rules,
    "sharing": sharing.sharing,
    "diagnosis": diagnosis.diagnosis,
    "import": children.import_time,
}


def arguments() -> argparse.Namespace:
    """Returns what the command line asks for."""
    parser = argparse.ArgumentParser(description="Measures npusim against the CPU backend.")
    parser.add_argument("--only", nargs="+", choices=MEASUREMENTS, default=list(MEASUREMENTS))
    parser.add_argument("--quick", action="store_true", help="few short blocks: numbers are rough")
    parser.add_argument("--rows", type=int, default=3, help="worst rows to print for each group")
    parser.add_argument("--json", type=Path, help="write all results to this file")
    parser.add_argument("--page", type=Path, help="rewrite the tables of this Markdown page")
    parser.add_argument("--update", type=Path, help="replace what was measured in this file")
    asked = parser.parse_args()
    if asked.page and (asked.quick or not (asked.update or set(asked.only) == set(MEASUREMENTS))):
        parser.error("--page takes a full run, or --update of one: leave out --quick and --only")
    return asked


def main() -> int:
    """Measures, prints and writes; the exit status says nothing about speed."""
    asked = arguments()
    described = machine.describe()
    earlier = json.loads(asked.update.read_text()) if asked.update else {"groups": []}
    if asked.update and earlier["machine"] != described:
        raise SystemExit(f"{asked.update} is of another machine: {earlier['machine']}")
    groups = []
    with torch.no_grad():
        for name in asked.only:
            for group in MEASUREMENTS[name](plan.QUICK if asked.quick else plan.FULL):
                groups.append(report.summary(group))
                worst = report.details(groups[-1])[: 2 + asked.rows]
                print(*worst, "", sep="\n", flush=True)
    command = " ".join(["python", *sys.argv])
    results = report.document(report.merged(earlier["groups"], groups), described, command)
    print("\n".join(report.overview(results)))
    for path in {asked.json, asked.update} - {None}:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(results, indent=1) + "\n")
    if asked.page:
        asked.page.write_text(report.rewritten(asked.page.read_text(), results))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
