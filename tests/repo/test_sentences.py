# SPDX-License-Identifier: BSD-3-Clause
"""Sentences begin with the noun that they are about: budgets that only fall.

Counted in README and docs/, in docstrings, and in the head comments of C++ files. Relative openings
are What, Who, Whoever, Whatever and Those, but for questions. A lone pronoun is "It is", "This has"
and the like, whose noun stands in an earlier sentence. Lower a budget when its count falls.
"""

import ast
import re

import pytest
from repo.sources import CPP, ROOT, shown, sources

SENTENCE = r"(?:^|(?<=[.!?:] )|(?<=[.!?:]\n)|(?<=^[-*] )|(?<=\| ))"
RELATIVE = re.compile(SENTENCE + r"(?:What|Who|Whoever|Whatever|Those)\b(?![^.!?|]*\?)", re.M)
PRONOUN = re.compile(
    SENTENCE
    + r"(?:It|This|That|These|They|Such|Both)\b (?:is|are|was|has|have|does|do|can|may|says?)\b",
    re.M,
)
BUDGETS = {
    # kind: (relative openings, openings with a pronoun alone)
    "pages": (1, 5),
    "docstrings": (10, 5),
    "head comments": (20, 0),
}


def pages():
    """Yields (place, text) of README and the pages, without code."""
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        yield shown(path), re.sub(r"^ *```.*?^ *```", "", path.read_text(), flags=re.S | re.M)


def docstrings():
    """Yields (place, text) of the docstrings."""
    with_docstring = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for path in sources(suffixes=(".py", ".pyi")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, with_docstring) and (text := ast.get_docstring(node)):
                yield shown(path), text


def head_comments():
    """Yields (place, text) of the comments with which C++ files begin."""
    for path in sources(suffixes=CPP):
        head = re.match(r"(?://.*\n)*", path.read_text())[0]
        yield shown(path), re.sub(r"^// ?", "", head, flags=re.M)


TEXTS = {"pages": pages, "docstrings": docstrings, "head comments": head_comments}


def openings(kind, pattern):
    """Returns the places of a kind of text at which sentences open so."""
    return [
        f"{place}: {text[match.start() : match.start() + 60].splitlines()[0]}"
        for place, text in TEXTS[kind]()
        for match in pattern.finditer(text)
    ]


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("which", [RELATIVE, PRONOUN], ids=["relative", "pronoun"])
def test_openings_stay_within_the_budget(kind, which):
    budget = BUDGETS[kind][which is PRONOUN]
    found = openings(kind, which)
    assert len(found) <= budget, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "relative", "pronoun"),
    [
        ("What is worst: PCIe.", 1, 0),
        ("What does it cost?", 0, 0),
        ("- Those of a size are kept. Who waits, waits.", 2, 0),
        ("The clock is virtual. It is fast.", 0, 1),
        ("The clock, which is what counts, is virtual.", 0, 0),
    ],
)
def test_openings_are_counted(text, relative, pronoun):
    assert len(RELATIVE.findall(text)) == relative
    assert len(PRONOUN.findall(text)) == pronoun
