# SPDX-License-Identifier: BSD-3-Clause
"""Tests cite every numbered rule of docs/understand/model.md, and no other."""

import re

from repo.sources import ROOT, shown, sources

RULE = r"[A-Z]\d+"


def stated_rules() -> set[str]:
    page = (ROOT / "docs" / "understand" / "model.md").read_text()
    return set(re.findall(rf"^- \*\*({RULE})\*\*", page, re.M))


def citations(*folders: str) -> dict[str, set[str]]:
    """Returns the files that cite each rule, as "rule S2", "rules S2, S3" or "rules S1 and S2"."""
    cited: dict[str, set[str]] = {}
    for path in sources(*folders):
        for group in re.findall(rf"\b[Rr]ules? ({RULE}(?:(?:, | and ){RULE})*)", path.read_text()):
            for rule in re.findall(RULE, group):
                cited.setdefault(rule, set()).add(shown(path))
    return cited


def test_every_rule_is_cited_by_a_test():
    assert stated_rules() - set(citations("tests")) == set()


def test_every_citation_names_a_rule():
    unknown = {rule: files for rule, files in citations().items() if rule not in stated_rules()}
    assert unknown == {}
