# SPDX-License-Identifier: BSD-3-Clause
"""docs/validation.md is what the model says today, and within its goal."""

import subprocess
import sys
from pathlib import Path

from torch_npusim import _specs

SCRIPT = Path(__file__).with_name("validation.py")


def test_the_table_is_up_to_date_and_within_the_goal():
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--check"],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| tested |" in done.stdout


def test_specifications_have_the_parameters_of_the_table():
    text = SCRIPT.read_text()
    for name in _specs.names():
        if name in _specs.BUILT_IN:
            continue
        spec = _specs.load(name)
        for key in ("matmul", "convolution", "attention", "bandwidth"):
            if spec.sources[f"achievable.{key}"].startswith("one value"):
                assert f'"{key}": {spec.numbers[f"achievable.{key}"]:g}' in text, (name, key)
