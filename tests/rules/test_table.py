# SPDX-License-Identifier: BSD-3-Clause
"""The rule book: each row has a source, an operator that exists, and agrees with op_db."""

import json
from pathlib import Path

import pytest
import torch
import torchgen
import yaml
from processes import python
from repo.sources import ROOT

from torch_npusim.sim import rules

_KINDS = ("", "Sparse", "SparseCsr", "Quantized", "NestedTensor")
#: Operators that are torch's own tests, or that make something of no device.
#: mkldnn_rnn_layer is what nn.LSTM runs here, in the place of cuDNN's.
_NO_OPERATORS = (
    "mkldnn_rnn_layer",
    "_test_",
    "_foobar",
    "_make_dep_token",
    "_functional_assert_async",
    "from_file",
)


def test_operators_that_only_the_cpu_has_are_those_of_torchs_list():
    functions = Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml"
    found = []
    for function in yaml.safe_load(functions.read_text()):
        listed = function.get("dispatch", {})
        keys = {key.strip() for keys in listed for key in keys.split(",")}
        name = function["func"].partition("(")[0]
        delegates = any(key.startswith("Composite") for key in keys)
        if delegates or name.startswith(_NO_OPERATORS):
            continue
        found += [
            (f"aten::{name}", kind)
            for kind in _KINDS
            if f"{kind}CPU" in keys and f"{kind}CUDA" not in keys
        ]
    rows = [(rule.operator, rule.when) for rule in rules.rows() if rule.verdict == "cpu only"]
    assert sorted(rows) == sorted(found)


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
