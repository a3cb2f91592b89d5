# SPDX-License-Identifier: BSD-3-Clause
"""Suites of packages: every failure has its reason."""

import importlib
import sys

from repo.sources import ROOT

SUITES = ROOT / "tools" / "packages"


def test_every_test_that_only_npusim_fails_is_explained():
    page = (ROOT / "docs" / "reference" / "package_suites.md").read_text()
    assert "| ratio |" in page
    assert "not explained" not in page


def test_a_test_that_the_cpu_skips_counts_and_needs_a_reason_if_npusim_fails_it(monkeypatch):
    monkeypatch.syspath_prepend(SUITES)
    run = importlib.import_module("run")
    on_cpu = {"both": run.Case("passed", 1.0), "a": run.Case("skipped", 0.0)}
    on_npusim = {
        "both": run.Case("passed", 2.0),
        "a": run.Case("failed", 1.0),
        "b": run.Case("passed", 1.0),
        "c": run.Case("skipped", 0.0),
    }
    found = run.compare(run.SUITES[0], on_cpu, on_npusim)
    assert (found["tests"], found["passed_on_both"], found["ratio"]) == (1, 1, 2.0)
    assert (found["only_with_a_gpu"], found["only_with_a_gpu_passed"]) == (2, 1)
    assert found["lost"] == {"a": "not explained"}
    for name in ("run", "page", "suites"):  # other tools have modules of these names
        sys.modules.pop(name)
