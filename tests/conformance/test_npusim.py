# SPDX-License-Identifier: BSD-3-Clause
"""npusim through the conformance kit: the smoke profile, which `make conformance` widens to all.

Every operator, module, optimizer and contract: the CPU's bits, and nothing fails that
tests/conformance/npusim.toml does not say (rule O1).
"""

import json
import subprocess
import sys
from pathlib import Path

EXPECTATIONS = Path(__file__).with_name("npusim.toml")


def test_smoke_profile(tmp_path):
    kit = [sys.executable, "-m", "npusim_conformance", "run", "--device", "npusim"]
    done = subprocess.run(
        [*kit, "--expect", str(EXPECTATIONS), "--profile", "smoke", "--quiet", "--json",
         "--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    summary = json.loads(done.stdout)
    assert summary["executed"] > 3000
    assert summary["passed"] + summary["counts"].get("upstream", 0) + summary["counts"].get(
        "xfail", 0
    ) == summary["executed"]  # fmt: skip
