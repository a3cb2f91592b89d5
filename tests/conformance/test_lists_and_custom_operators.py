# SPDX-License-Identifier: BSD-3-Clause
"""The kit's properties of torch._foreach_* and of operators registered with torch.library."""

import pytest
import torch
from conformance.single_cases import FAIL, NA, PASS, bench

from npusim_conformance.inputs import torch_testing

__all__ = ["bench"]


@pytest.fixture
def plant(monkeypatch):
    """plant(name, attribute, wrong): a foreach function that is wrong on the device."""

    def plant(name, attribute, wrong):
        info = torch_testing.foreach_operators()[name]
        right = getattr(info, attribute)

        def stand_in(tensors, *args, **kwargs):
            if tensors[0].device.type == "npusim":
                return wrong(right, tensors, *args, **kwargs)
            return right(tensors, *args, **kwargs)

        monkeypatch.setattr(info, attribute, stand_in)

    return plant


@pytest.mark.parametrize("name", ["add", "addcmul", "norm", "lerp", "max", "mm", "sqrt"])
def test_right_functions_pass(bench, name):
    bench.samples_max = None
    for dtype in ("float32", "int64", "bool"):
        outcome = bench.outcome(f"foreach:{name}/forward/{dtype}")
        assert outcome.status in (PASS, NA)
        assert outcome.upstream_samples == 0
    assert bench.status(f"foreach:{name}/forward/float32") is PASS


def fewer(right, tensors, *args):
    return right(tensors, *args)[:-1]


def last_one_left_out(right, tensors, *args):
    return [*right(tensors, *args)[:-1], tensors[-1].clone()]


def gaps_filled(right, tensors, *args):
    """As a kernel that takes the addresses of all tensors, and skips none."""
    return [
        torch.zeros_like(tensor) if tensors[0].numel() == 0 else result
        for tensor, result in zip(tensors, right(tensors, *args), strict=True)
    ]


@pytest.mark.parametrize("wrong", [fewer, last_one_left_out, gaps_filled])
def test_wrong_results_are_seen(bench, plant, wrong):
    plant("exp", "op", wrong)
    outcome = bench.outcome("foreach:exp/forward/float32")
    assert outcome.status is FAIL
    assert outcome.upstream_samples == 0


def test_a_loop_that_gives_something_else_is_seen(bench, plant):
    plant("exp", "ref", lambda right, tensor: right(tensor) * 1.01)
    outcome = bench.outcome("foreach:exp/forward/float32")
    assert outcome.status is FAIL
    assert outcome.upstream_samples == 0


def not_written(right, tensors, *args):
    right([tensor.clone() for tensor in tensors], *args)


def moved(right, tensors, *args):
    right(tensors, *args)
    for tensor in tensors:
        tensor.set_(tensor.clone())


def unnoticed(right, tensors, *args):
    with torch.autograd._unsafe_preserve_version_counter(tuple(tensors)):
        right(tensors, *args)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [(not_written, "result"), (moved, "another storage"), (unnoticed, "version")],
)
def test_wrong_writes_are_seen(bench, plant, wrong, said):
    assert bench.status("foreach:exp/inplace/float32") is PASS
    plant("exp", "inplace_variant", wrong)
    outcome = bench.outcome("foreach:exp/inplace/float32")
    assert outcome.status is FAIL
    assert said in outcome.message


def test_a_launch_that_takes_thirty_tensors(bench, plant):
    assert bench.status("foreach:exp/many/float32") is PASS
    plant("exp", "inplace_variant", lambda right, tensors, *args: right(tensors[:30], *args))
    assert bench.outcome("foreach:exp/many/float32").status is FAIL


def test_a_list_that_ends_at_an_empty_tensor(bench, plant):
    def wrong(right, tensors, *args):
        sizes = [tensor.numel() for tensor in tensors]
        return right(tensors[: sizes.index(0)] if 0 in sizes else tensors, *args)

    plant("exp", "inplace_variant", wrong)
    assert bench.outcome("foreach:exp/many/float32").status is FAIL


def test_there_is_no_such_function(bench):
    assert bench.status("foreach:zero/forward/float32") is NA
    assert bench.status("foreach:zero/inplace/float32") is PASS
    assert bench.status("foreach:norm/inplace/float32") is NA


# --- operators of users


def test_custom_operators_pass(bench):
    assert bench.status("custom:NumpyMulCustomOp/forward/float32") is PASS
    outcome = bench.outcome("custom:NumpyMulCustomOp/opcheck/float32")
    assert (outcome.status, outcome.upstream_samples) == (PASS, 0)


@pytest.fixture
def operator(monkeypatch):
    """A custom operator whose implementation for the device is what a test makes of it."""
    library = torch.library.Library("npusim_conformance_test", "DEF")
    library.define("double(Tensor x) -> Tensor")
    library.impl("double", lambda x: x * 2, "CPU")
    library.impl("double", lambda x: x.new_empty(x.shape), "Meta")
    info = torch_testing.custom_operators()["NumpyNonzeroCustomOp"]
    monkeypatch.setattr(info, "op", torch.ops.npusim_conformance_test.double.default)
    yield lambda kernel: library.impl("double", kernel, "PrivateUse1")
    library._destroy()


CASES = [f"custom:NumpyNonzeroCustomOp/{name}/float32" for name in ("forward", "opcheck")]


def statuses(bench):
    return [bench.status(case) for case in CASES]


def test_a_right_kernel_passes(bench, operator):
    operator(lambda x: x * 2)
    assert statuses(bench) == [PASS, PASS]


def test_a_wrong_value_is_forward_s(bench, operator):
    operator(lambda x: x * 3)
    assert statuses(bench) == [FAIL, PASS]


def test_a_wrong_shape_is_opcheck_s_too(bench, operator):
    operator(lambda x: x[None] * 2)
    assert statuses(bench) == [FAIL, FAIL]


def test_a_write_that_the_schema_does_not_know_is_opcheck_s(bench, operator):
    def greedy(x):
        result = x * 2
        x.zero_()
        return result

    operator(greedy)
    assert statuses(bench) == [PASS, FAIL]
    assert "test_schema" in bench.outcome(CASES[1]).message
