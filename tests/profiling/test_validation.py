# SPDX-License-Identifier: BSD-3-Clause
"""docs/reference/validation.md is what the model says today, and within its goal."""

from pathlib import Path

from processes import python

from torch_npusim.sim import specs

SCRIPT = Path(__file__).parents[2] / "tools" / "pages" / "validation.py"


def test_the_table_is_up_to_date_and_within_the_goal():
    done = python(SCRIPT, "--check", timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| tested |" in done.stdout


def test_specifications_have_the_parameters_of_the_table():
    text = SCRIPT.read_text()
    for name in specs.names():
        if name in specs.BUILT_IN:
            continue
        spec = specs.load(name)
        for key in ("matmul", "convolution", "attention", "bandwidth"):
            if spec.sources[f"achievable.{key}"].startswith("one value"):
                assert f'"{key}": {spec.numbers[f"achievable.{key}"]:g}' in text, (name, key)
