# SPDX-License-Identifier: BSD-3-Clause
"""The page of the packages' suites is that of the results, and every failure has its reason."""

import json
import subprocess
import sys
from pathlib import Path

from repo.sources import ROOT

HERE = Path(__file__).parent


def test_the_page_is_that_of_the_results():
    command = [sys.executable, str(HERE / "run.py"), "--page"]
    written = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert written == (ROOT / "docs" / "package_suites.md").read_text()


def test_every_test_that_only_npusim_fails_is_explained():
    results = json.loads((HERE / "results.json").read_text())
    assert len(results) >= 3
    assert not [
        (suite, test)
        for suite, result in results.items()
        for test, why in result["lost"].items()
        if why == "not explained"
    ]
