# SPDX-License-Identifier: BSD-3-Clause
"""npusim through the conformance kit: a part of what `make conformance` runs.

Every operator, module, optimizer and contract: the CPU's bits, and nothing fails that
tests/conformance/npusim.toml does not say (rule O1).
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXPECTATIONS = Path(__file__).with_name("npusim.toml")
MORE_DTYPES = ["--props", "forward", "--dtypes", "int64,complex64,bool,bfloat16"]


@pytest.mark.parametrize(
    ("selection", "at_least"),
    [
        (["--profile", "smoke"], 3000),
        (["--profile", "standard", "--max-samples", "3", *MORE_DTYPES], 1500),
    ],
    ids=["smoke profile", "values of more dtypes"],
)
def test_nothing_fails_unforeseen(tmp_path, selection, at_least):
    kit = [sys.executable, "-m", "npusim_conformance", "run", "--device", "npusim", *selection]
    done = subprocess.run(
        [*kit, "--expect", str(EXPECTATIONS), "--quiet", "--json", "--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    summary = json.loads(done.stdout)
    counts = summary["counts"]
    assert summary["executed"] > at_least
    # No other status than these: nothing was lost on the way.
    others = counts.get("upstream", 0) + counts.get("xfail", 0)
    assert summary["passed"] + others == summary["executed"]
