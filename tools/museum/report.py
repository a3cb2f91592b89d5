# SPDX-License-Identifier: BSD-3-Clause
"""The findings, as verdicts and as tables."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from museum.harness import SUBJECTS

from examples.bug_museum.exhibit import Exhibit

CAUGHT, PASSED, CANNOT_RUN, FALSE_ALARM = "caught", "passes", "cannot run", "false alarm"
BEGIN = "<!-- begin: written by python tools/museum/run.py --page -->"
END = "<!-- end -->"
_SHOWN = {CAUGHT: "**caught**", PASSED: "-", CANNOT_RUN: "cannot run", FALSE_ALARM: "FALSE ALARM"}
_TITLES = {"cpu": "CPU", "meta": "meta", "fake": "FakeTensor", "npusim": "npusim"}


def verdict(subject: str, wrong: str, fixed: str) -> str:
    """Returns what a subject is worth for an exhibit, from what stopped its two variants.

    A fixed variant that is stopped is a false alarm where programs are meant to run. The meta
    device and FakeTensorMode have no values, so there it says that they cannot run this program at
    all; that the wrong variant is stopped too says nothing.
    """
    if fixed:
        return CANNOT_RUN if subject in ("meta", "fake") else FALSE_ALARM
    return CAUGHT if wrong else PASSED


@dataclass(frozen=True)
class Finding:
    """The verdicts for one exhibit.

    Attributes:
        name: Name of the exhibit.
        title: What it is.
        theme: The kind of bug.
        link: The kind of issue that it stands for.
        missed: Why npusim does not catch it; "" if it should.
        verdicts: By subject.
        stopped: By variant and subject: what stopped it, "" if nothing did.
    """

    name: str
    title: str
    theme: str
    link: str
    missed: str
    verdicts: dict[str, str]
    stopped: dict[str, dict[str, str]]

    @classmethod
    def of(cls, exhibit: Exhibit, stopped: dict[str, dict[str, str]]) -> "Finding":
        """Judges what stopped the variants of an exhibit."""
        verdicts = {
            subject: verdict(subject, stopped["wrong"][subject], stopped["fixed"][subject])
            for subject in SUBJECTS
        }
        return cls(
            exhibit.name,
            exhibit.title,
            exhibit.theme,
            exhibit.link,
            exhibit.missed,
            verdicts,
            stopped,
        )

    def as_expected(self) -> bool:
        """Returns whether npusim catches the wrong variant, or does not and says why."""
        return self.verdicts["npusim"] == (PASSED if self.missed else CAUGHT)

    def as_dict(self) -> dict[str, Any]:
        """Returns everything in plain types."""
        return asdict(self)


def _how(finding: Finding) -> str:
    said = finding.stopped["wrong"]["npusim"]
    kind, colon, _ = said.partition(": ")
    return f"raises {kind}" if colon else said


def messages(findings: list[Finding]) -> str:
    """Returns for each exhibit who says what."""
    lines = []
    for finding in findings:
        lines.append(f"{finding.name}: {finding.title}\n  {finding.link}")
        for subject, what in finding.verdicts.items():
            lines.append(f"  {_TITLES[subject]}: {what}")
            for variant, stopped in finding.stopped.items():
                if stopped[subject]:
                    lines.append(f"    {variant}: {stopped[subject]}")
    return "\n".join(lines)


def tables(findings: list[Finding]) -> str:
    """Returns the summary, the table and the list of what npusim misses, in Markdown."""
    rows = {
        "wrong variants caught": CAUGHT,
        "wrong variants that pass": PASSED,
        "programs that cannot run there even when they are right": CANNOT_RUN,
        "false alarms on fixed variants": FALSE_ALARM,
    }
    heads = [_TITLES[subject] for subject in SUBJECTS]
    lines = [f"| of {len(findings)} exhibits | {' | '.join(heads)} |", "|---|" + "---|" * 4]
    for label, kind in rows.items():
        counts = [
            str(sum(finding.verdicts[subject] == kind for finding in findings))
            for subject in SUBJECTS
        ]
        lines.append(f"| {label} | {' | '.join(counts)} |")
    lines += ["", f"| exhibit | theme | {' | '.join(heads)} | what npusim says | kind of issue |"]
    lines.append("|---|---|" + "---|" * 6)
    for finding in findings:
        source = f"../../examples/bug_museum/exhibits/{finding.name}.py"
        repository, _, number = finding.link.removeprefix("https://github.com/").rsplit("/", 2)
        cells = [
            f"[{finding.name}]({source})",
            finding.theme,
            *(_SHOWN[finding.verdicts[subject]] for subject in SUBJECTS),
            _how(finding),
            f"[{repository} {number}]({finding.link})",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    if missed := [finding for finding in findings if finding.missed]:
        lines += ["", "What npusim misses, and why:", ""]
        lines += [f"- `{finding.name}`: {finding.missed}." for finding in missed]
    return "\n".join(lines)


def write(page: Path, findings: list[Finding]) -> None:
    """Replaces what is between the marks of a page with the tables.

    Raises:
        ValueError: If the page does not have both marks.
    """
    text = page.read_text()
    if BEGIN not in text or END not in text:
        raise ValueError(f"{page} needs the lines {BEGIN!r} and {END!r}")
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    page.write_text(f"{head}{BEGIN}\n\n{tables(findings)}\n\n{END}{tail}")
