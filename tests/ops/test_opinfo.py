# SPDX-License-Identifier: BSD-3-Clause
"""Every operator that torch describes (its OpInfo database), on npusim against the CPU (rule O1).

A few sample inputs per operator and dtype, forward and, in float32, backward. What differs by
design or not yet works is data: tests/ops/expectations.toml.
"""

import tomllib
import warnings
from pathlib import Path

import pytest
import torch
from oracle import Mover, assert_same_layout, compare, reseed
from torch.testing._internal.common_methods_invocations import op_db

DTYPES = [torch.float32, torch.int64, torch.complex64, torch.bool]
SAMPLES_MAX = 3  # per dtype, spread over those that torch offers

EXPECTATIONS = tomllib.loads(Path(__file__).with_name("expectations.toml").read_text())
UNSUPPORTED = EXPECTATIONS["unsupported"]
XFAIL = EXPECTATIONS["xfail"]
NO_VALUES = EXPECTATIONS["no_values"]


def name_of(op):
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


OPERATORS = {name_of(op): op for op in op_db}


@pytest.fixture(autouse=True)
def _one_thread():
    """With two, BLAS splits a matrix-vector product by where its result lies in memory."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch.set_num_threads(before)


def samples_of(op, dtype):
    """Sample inputs on the CPU that the CPU accepts."""
    gradients = op.supports_autograd and dtype == torch.float32
    reseed(0)
    # Not op.sample_inputs(): it inspects the stack, which costs more than everything else here.
    offered = list(op.sample_inputs_func(op, "cpu", dtype, gradients))
    count = min(SAMPLES_MAX, len(offered))
    for number in range(count):
        sample = offered[number * len(offered) // count]
        try:
            op(sample.input, *sample.args, **sample.kwargs)
        except (RuntimeError, ValueError, TypeError, IndexError):
            continue
        yield sample


def check_layout(op, sample):
    """Shapes, dtypes and strides only."""
    mover = Mover()
    expected = op(sample.input, *sample.args, **sample.kwargs)
    got = op(mover(sample.input), *mover(sample.args), **mover(sample.kwargs))
    assert_same_layout(expected, got)


def check(op):
    for dtype in DTYPES:
        if not op.supports_dtype(dtype, "cpu"):
            continue
        backward = op.supports_autograd and dtype == torch.float32
        for sample in samples_of(op, dtype):
            if name_of(op) in NO_VALUES:
                check_layout(op, sample)
            else:
                compare(op, sample.input, *sample.args, backward=backward, **sample.kwargs)


@pytest.mark.parametrize("name", sorted(set(OPERATORS) - set(UNSUPPORTED)))
def test_operator(name):
    if name not in XFAIL:
        check(OPERATORS[name])
        return
    try:
        check(OPERATORS[name])
    except Exception:
        return
    pytest.fail(f"{name} passes: take it out of [xfail] in expectations.toml")


@pytest.mark.parametrize("table", ["unsupported", "xfail", "no_values"])
def test_expectations_name_operators_and_give_reasons(table):
    assert set(EXPECTATIONS[table]) <= set(OPERATORS)
    assert all(EXPECTATIONS[table].values())
