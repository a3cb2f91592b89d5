# SPDX-License-Identifier: BSD-3-Clause
"""Writes the table of docs/reference/direct_calls.md from a run of `npusim-conformance fuzz`.

npusim-conformance fuzz --device npusim --import torch_npusim --out DIR
python tools/pages/direct_calls.py DIR
"""

import json
import pathlib
import re
import sys
from collections import defaultdict

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "reference" / "direct_calls.md"
_ISSUE = "https://github.com/pytorch/pytorch/issues"
_VERDICT = re.compile(
    r"on the CPU too \((?P<end>\w+)(?P<fenced> outside of its operands)?"
    r"(?:; pytorch/pytorch (?P<issue>\d+))?\)"
)


def table(log: str) -> list[str]:
    """Rows of the operators whose direct call ends the CPU too. `log` is the text of run.jsonl."""
    overloads, ends, issues = defaultdict(set), defaultdict(set), defaultdict(set)
    for line in log.splitlines():
        record = json.loads(line)
        if record.get("status") != "upstream":
            continue
        operator, _, overload = record["case"].split(":", 1)[1].split("/")[0].partition(".")
        found = _VERDICT.search(record["message"])
        if found is None:
            raise ValueError(f"{record['case']}: no verdict of the CPU in {record['message']!r}")
        overloads[operator].add(f"`{overload or 'default'}`")
        ends[operator].add(found["end"] + (" (fenced)" if found["fenced"] else ""))
        if found["issue"]:
            issues[operator].add(f"[{found['issue']}]({_ISSUE}/{found['issue']})")
    return ["| operator | overloads | ends by | issue |", "|---|---|---|---|"] + [
        f"| `{operator}` | {', '.join(sorted(overloads[operator]))} "
        f"| {', '.join(sorted(ends[operator]))} | {', '.join(sorted(issues[operator]))} |"
        for operator in sorted(overloads)
    ]


def main() -> None:
    """Writes the page anew, below its words."""
    log = (pathlib.Path(sys.argv[1]) / "run.jsonl").read_text()
    before, _, _ = PAGE.read_text().partition("| operator |")
    PAGE.write_text(before + "\n".join(table(log)) + "\n")


if __name__ == "__main__":
    main()
