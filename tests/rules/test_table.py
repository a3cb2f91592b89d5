# SPDX-License-Identifier: BSD-3-Clause
"""The rule book is what its script makes of this torch, and each row has a source."""

import csv
import io
import json

import pytest
import torch
from processes import python
from repo.sources import ROOT

from torch_npusim.sim import rules


def written_now():
    """Returns the table that tools/cuda_rules.py writes today, in a process of its own."""
    done = python(
        ROOT / "tools" / "cuda_rules.py",
        variables={"NPUSIM_AS_CUDA": "0"},
        cold=True,  # torch's tables of operators ask for devices while they are imported
        timeout=600,
        check=True,
    )
    return [tuple(row) for row in csv.reader(io.StringIO(done.stdout))]


def test_the_file_is_what_the_script_writes():
    header, *rows = written_now()
    assert tuple(header) == rules.Rule._fields
    of_this_torch = [row for row in rows if rules.is_of_this_torch(rules.Rule(*row))]
    assert [tuple(rule) for rule in rules.rows()] == of_this_torch


def test_each_row_has_a_source_and_an_operator_that_exists():
    for rule in rules.rows():
        assert rule.source
        name, _, overload = rule.operator.removeprefix("aten::").partition(".")
        schemas = torch._C._jit_get_schemas_for_operator(f"aten::{name}")
        assert overload in [schema.overload_name for schema in schemas], rule


def test_every_dtype_is_one():
    for rule in rules.rows():
        for name in rule.dtypes.split():
            assert isinstance(getattr(torch, name), torch.dtype)


@pytest.mark.parametrize("part", [3, 31])
def test_a_part_of_torchs_own_samples(part):
    """All of them: make rules."""
    done = python(
        ROOT / "tests" / "rules" / "op_db_run.py",
        f"--part={part}/60",
        variables={"NPUSIM_AS_CUDA": "0"},
        cold=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["ran"] > 100
    assert report["refused"] > 0
