# SPDX-License-Identifier: BSD-3-Clause
"""npusim through the conformance kit: a part of what `make conformance` runs.

Every operator, module, optimizer and contract: the CPU's bits, and nothing fails that
tests/conformance/npusim.toml does not say (rule O1).
"""

import json
from pathlib import Path

import pytest
from processes import python

EXPECTATIONS = Path(__file__).with_name("npusim.toml")
MORE_DTYPES = ["--props", "forward", "--dtypes", "int64,complex64,bool,bfloat16"]


@pytest.mark.parametrize(
    ("selection", "at_least"),
    [
        (["--profile", "smoke"], 3000),
        (["--profile", "standard", "--max-samples", "3", *MORE_DTYPES], 1500),
        (["--profile", "full", "--ops", "foreach:*", "--dtypes", "float32,bfloat16"], 150),
    ],
    ids=["smoke profile", "values of more dtypes", "lists of tensors"],
)
def test_nothing_fails_unforeseen(tmp_path, selection, at_least):
    kit = ["-m", "npusim_conformance", "run", "--device", "npusim", *selection]
    done = python(
        *kit, "--expect", EXPECTATIONS, "--quiet", "--json", "--out", tmp_path / "out", timeout=900
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    summary = json.loads(done.stdout)
    counts = summary["counts"]
    assert summary["executed"] > at_least
    # No other status than these: nothing was lost on the way.
    others = counts.get("upstream", 0) + counts.get("xfail", 0)
    assert summary["passed"] + others == summary["executed"]


def test_contracts_hold_under_the_alias(tmp_path):
    """Programs that say "cuda" get the same device (docs/use/cuda_alias.md)."""
    kit = ["-m", "npusim_conformance", "run", "--device", "cuda", "--import", "torch_npusim"]
    kit += ["--ops", "contract:*", "--profile", "smoke", "--quiet", "--json"]
    done = python(*kit, "--out", tmp_path / "out", variables={"NPUSIM_AS_CUDA": "1"})
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    summary = json.loads(done.stdout)
    assert summary["passed"] == summary["executed"] > 200
