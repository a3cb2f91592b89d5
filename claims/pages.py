# SPDX-License-Identifier: BSD-3-Clause
"""Tables of pages from claims/results.json: prose by hand, a table between two marks by this file.

    <!-- claims: NAME -->  ...  <!-- end of NAME -->

TABLES has a function for each name. A table begins with its commit and day, and is called stale
after LIMIT_DAYS.
"""

import datetime
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from claims import device, runner
from claims.claim import Claim, briefs, load

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).with_name("results.json")
PAGES = tuple(
    ROOT / "docs" / page for page in ("reference/bug_museum.md", "use/what_it_catches.md")
)
LIMIT_DAYS = 60
MARK = re.compile(r"<!-- claims: (\w+) -->.*?<!-- end of \1 -->", re.DOTALL)

CAUGHT, PASSED, CANNOT_RUN, FALSE_ALARM = "**caught**", "-", "cannot run", "FALSE ALARM"
TITLES = {"cpu": "CPU", "meta": "meta", "fake": "FakeTensor", "npusim": "npusim"}
COUNTED = {
    "wrong variants caught": CAUGHT,
    "wrong variants that pass": PASSED,
    "programs that cannot run there even when they are right": CANNOT_RUN,
    "false alarms on fixed variants": FALSE_ALARM,
}

Results = dict[str, Any]
Found = list[tuple[Claim, dict[str, dict[str, str]]]]


def read() -> Results:
    """Returns the kept outcomes: the stamp of their run, and claim -> variant -> subject -> words.

    Subjects that nothing stopped have no words. Of short claims there are counts by subject.
    """
    found: Results = json.loads(RESULTS.read_text())
    return found


def keep(stamp: dict[str, str], outcomes: dict[str, runner.Stopped], anew: bool = True) -> None:
    """Writes the outcomes, a line for each claim, and for each list whose claims all ran.

    Without `anew` others stay as they are.
    """
    before: Results = {"claims": {}, "lists": {}} if anew else read()
    lines, lists = [], before["lists"]
    listed = {name: of for name, of in outcomes.items() if name.startswith("lists/")}
    for subject in {name.split("/")[1] for name in listed}:
        ran = [name for name in listed if name.split("/")[1] == subject]
        if len(ran) == len(briefs(subject)):
            good = sum(runner.as_expected(load(name), listed[name]) for name in ran)
            accused = sum(bool(listed[name]["fixed"]["npusim"]) for name in ran)
            lists[subject] = {"claims": len(ran), "as expected": good, "accused": accused}
    told = before["claims"] | {name: of for name, of in outcomes.items() if name not in listed}
    for name, of in sorted(told.items()):
        short = {v: {s: words for s, words in of[v].items() if words} for v in of}
        lines.append(f"  {json.dumps(name)}: {json.dumps({v: w for v, w in short.items() if w})}")
    head = json.dumps(stamp)[1:-1]
    head += f', "lists": {json.dumps(lists, sort_keys=True)}'
    RESULTS.write_text("{" + head + ', "claims": {\n' + ",\n".join(lines) + "\n}}\n")


def age(results: Results) -> int:
    """Returns the days since the outcomes were kept."""
    then = datetime.date.fromisoformat(results["day"])
    return (datetime.datetime.now(datetime.UTC).date() - then).days


def filled(text: str, results: Results) -> str:
    """Returns the text of a page, each marked table made anew."""
    told = f"Commit {results['commit']}, {results['day']}, torch {results['torch']}"
    told += ", **stale**." if age(results) > LIMIT_DAYS else "."

    def table(match: re.Match[str]) -> str:
        name = match[1]
        if name == "lists":
            rows = _lists(results["lists"])
            return f"<!-- claims: lists -->\n\n{told}\n\n{rows}\n\n<!-- end of lists -->"
        every = [(load(one), of) for one, of in sorted(results["claims"].items())]
        rows = TABLES[name]([(c, of) for c, of in every if c.how == OF[name]])
        return f"<!-- claims: {name} -->\n\n{told}\n\n{rows}\n\n<!-- end of {name} -->"

    return MARK.sub(table, text)


def _lists(found: dict[str, dict[str, int]]) -> str:
    """Returns the table of short claims, by subject."""
    lines = ["| short claims | number | as claimed | right programs accused |", "|---|--:|--:|--:|"]
    for subject, of in sorted(found.items()):
        link = f"[{subject.replace('_', ' ')}](../../claims/lists/{subject}.py)"
        lines.append(f"| {link} | {of['claims']} | {of['as expected']} | {of['accused']} |")
    return "\n".join(lines)


def verdict(subject: str, wrong: str, fixed: str) -> str:
    """Returns what a subject is worth for a claim, from what stopped its two variants.

    A fixed variant that is stopped is a false alarm where programs are meant to run. The meta
    device and FakeTensorMode have no values, so there it says that they cannot run this program at
    all; that the wrong variant is stopped too says nothing.
    """
    if fixed:
        return CANNOT_RUN if subject in ("meta", "fake") else FALSE_ALARM
    return CAUGHT if wrong else PASSED


def _cells(claim: Claim) -> tuple[str, str, str]:
    subject, _, name = claim.id.partition("/")
    repository, _, number = claim.source.removeprefix("https://github.com/").rsplit("/", 2)
    file = f"[{name}](../../claims/specimens/{claim.id}.py)"
    return file, subject.replace("_", " "), f"[{repository} {number}]({claim.source})"


def _museum(found: Found) -> str:
    judged = [
        (claim, of, [verdict(s, *(of.get(v, {}).get(s, "") for v in ("wrong", "fixed"))) for s in
                     device.SUBJECTS])
        for claim, of in found
    ]  # fmt: skip
    heads = " | ".join(TITLES[subject] for subject in device.SUBJECTS)
    lines = [f"| of {len(found)} programs | {heads} |", "|---|" + "---|" * len(device.SUBJECTS)]
    columns = [verdicts for *_, verdicts in judged]
    for label, kind in COUNTED.items():
        counts = [sum(c == kind for c in column) for column in zip(*columns, strict=True)]
        lines.append(f"| {label} | {' | '.join(map(str, counts))} |")
    lines += ["", f"| program | subject | {heads} | what npusim says | kind of issue |"]
    lines.append("|---|---|" + "---|" * (len(device.SUBJECTS) + 2))
    for claim, of, verdicts in judged:
        file, subject, link = _cells(claim)
        said = of.get("wrong", {}).get("npusim", "")
        kind, colon, _ = said.partition(": ")
        says = f"raises {kind}" if colon else said
        says = f"missed: {claim.missed}" if claim.missed else says
        lines.append(f"| {' | '.join([file, subject, *verdicts, says, link])} |")
    return "\n".join(lines)


def _short(text: str) -> str:
    text = text.replace("|", "/")
    return (text if len(text) <= 120 else text[:117] + "...") or "nothing"


def _ranks(found: Found) -> str:
    wrong = [(claim, of.get("wrong", {})) for claim, of in found]
    caught, by_gloo = (sum(subject in of for _, of in wrong) for subject in ("npusim", "gloo"))
    accused = sum("npusim" in of.get("fixed", {}) for _, of in found)
    lines = [
        f"Of {len(found)} wrong programs npusim stops {caught}, and {accused} of their twins. "
        f"On the CPU gloo stops {by_gloo}.",
        "",
        "| program | subject | | CPU and gloo | npusim | kind of issue |",
        "|---|---|---|---|---|---|",
    ]
    for claim, of in wrong:
        file, subject, link = _cells(claim)
        says = f"missed: {claim.missed}" if claim.missed else _short(of.get("npusim", ""))
        told = [file, subject, claim.title, _short(of.get("gloo", "")), says, link]
        lines.append(f"| {' | '.join(told)} |")
    return "\n".join(lines)


TABLES: dict[str, Callable[[Found], str]] = {"museum": _museum, "ranks": _ranks}
OF = {"museum": "device", "ranks": "ranks"}
