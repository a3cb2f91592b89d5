# SPDX-License-Identifier: BSD-3-Clause
"""Brings [[xfail]] of an expectations file up to what a run showed; comments and order stay.

Entries that only cover passing cases go, entries that cover some lose those, and unexpected
failures get an entry per cause, with the widest globs that match nothing else of the catalog.
"""

import fnmatch
import re
from collections.abc import Iterable, Mapping

import tomlkit
from tomlkit.items import AoT, Table

from npusim_conformance.case import Case
from npusim_conformance.verdict import FAILED, PASSED, Outcome

REASON_MAX = 160


def updated(text: str, outcomes: Mapping[str, Outcome], names: Iterable[str]) -> str:
    """The new text of an expectations file, from the outcomes of a run.

    `names` are all cases of the catalog. Flakes and cases that did not run change nothing.
    """
    document = tomlkit.parse(text)
    passed = {name for name, outcome in outcomes.items() if outcome.status in PASSED}
    failed = {name: outcome for name, outcome in outcomes.items() if outcome.status in FAILED}
    everything = sorted({*names, *outcomes})
    entries = document.get("xfail")
    covered: set[str] = set()
    if entries is not None:
        for index in reversed(range(len(entries))):
            kept = _revise(entries[index], passed, everything)
            if not kept:
                del entries[index]
            covered |= kept
        if not entries:
            del document["xfail"]
    skipped = _matched(
        [glob for entry in document.get("skip", []) for glob in _cases(entry)], everything
    )
    groups: dict[str, list[Outcome]] = {}
    for name in sorted(set(failed) - covered - skipped):
        outcome = failed[name]
        groups.setdefault(outcome.cause or outcome.status.value, []).append(outcome)
    if groups:
        if "xfail" not in document:
            document.append("xfail", tomlkit.aot())
        target = document["xfail"]
        assert isinstance(target, AoT)
        for cause, found in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
            target.append(_entry(cause, found, everything))
    return tomlkit.dumps(document)


def globs(cases: set[str], everything: Iterable[str]) -> list[str]:
    """Few patterns that match all of `cases` and nothing else of `everything`."""
    foreign = [name for name in everything if name not in cases]
    left = set(cases)
    chosen: list[str] = []
    candidates: dict[str, set[str]] = {}
    for name in cases:
        for pattern in _wider(name):
            candidates.setdefault(pattern, set()).add(name)
    clean: list[tuple[str, set[str]]] = []
    for pattern, found in candidates.items():
        compiled = re.compile(fnmatch.translate(pattern))
        if len(found) > 1 and not any(compiled.match(name) for name in foreign):
            clean.append((pattern, {name for name in cases if compiled.match(name)}))
    while clean:
        clean.sort(key=lambda item: (-len(item[1] & left), item[0]))
        pattern, found = clean.pop(0)
        if len(found & left) < 2:
            break
        chosen.append(pattern)
        left -= found
    return sorted(chosen + [_literal(name) for name in left])


def _wider(name: str) -> list[str]:
    case = Case.parse(name)
    subject = _escape(case.subject)
    subjects = [subject]
    prefix, dot, _ = subject.rpartition(".")
    if dot:
        subjects.append(f"{prefix}.*")
    subjects.append("*")
    patterns = []
    for chosen in subjects:
        head = f"{case.kind}:{chosen}"
        patterns.append(f"{head}/{_escape(case.property)}*" if case.dtype else head + "/*")
        if case.dtype:
            patterns.append(f"{head}/{_escape(case.property)}/{case.dtype}")
            patterns.append(f"{head}/*/{case.dtype}")
            patterns.append(f"{head}/{_escape(case.property)}/*")
        patterns.append(f"{head}/*")
    return patterns


def _literal(name: str) -> str:
    return _escape(name)


def _escape(text: str) -> str:
    return re.sub(r"([*?\[])", r"[\1]", text)


def _cases(entry: Table) -> list[str]:
    cases = entry["cases"]
    return [str(cases)] if isinstance(cases, str) else [str(item) for item in cases]


def _matched(patterns: list[str], everything: list[str]) -> set[str]:
    if not patterns:
        return set()
    compiled = re.compile("|".join(fnmatch.translate(pattern) for pattern in patterns))
    return {name for name in everything if compiled.match(name)}


def _revise(entry: Table, passed: set[str], everything: list[str]) -> set[str]:
    """Narrows one entry to what did not pass; returns that, empty where it can go."""
    matched = _matched(_cases(entry), everything)
    kept = matched - passed
    if kept and kept != matched:
        entry["cases"] = _array(globs(kept, everything))
    return kept


def _entry(cause: str, outcomes: list[Outcome], everything: list[str]) -> Table:
    entry = tomlkit.table()
    entry["cases"] = _array(globs({outcome.case for outcome in outcomes}, everything))
    entry["reason"] = cause[:REASON_MAX]
    return entry


def _array(patterns: list[str]) -> tomlkit.items.Array:
    array = tomlkit.array()
    array.extend(patterns)
    return array.multiline(len(patterns) > 1)
