# SPDX-License-Identifier: BSD-3-Clause
"""`meta`, `fake`, `fake_backward`, `vmap`: results as torch predicts them, and in batches."""

import pytest
import torch
from conformance.single_cases import FAIL, NA, PASS, bench

__all__ = ["bench"]


def transposed(right, *args, **kwargs):
    """Right values and shape, other strides."""
    result = right(*args, **kwargs)
    return result.mT.contiguous().mT if result.dim() > 1 else result


def widened(right, *args, **kwargs):
    return right(*args, **kwargs).double()


@pytest.mark.parametrize("name", ["meta", "fake"])
@pytest.mark.parametrize(("defect", "what"), [(transposed, "strides"), (widened, "dtype")])
def test_results_unlike_their_prediction_are_seen(bench, name, defect, what):
    case = f"op:tanh/{name}/float32"
    assert bench.status(case) is PASS
    bench.plant_results("tanh", defect)
    outcome = bench.outcome(case)
    assert outcome.status is FAIL
    assert what in outcome.message
    assert outcome.upstream_samples == 0


def test_fake_sees_a_result_elsewhere(bench):
    bench.plant_results("tanh", lambda right, *args, **kwargs: right(*args, **kwargs).cpu())
    outcome = bench.outcome("op:tanh/fake/float32")
    assert outcome.status is FAIL
    assert "predicted by fake tensors: npusim:0" in outcome.message


class Transposing(torch.autograd.Function):
    """Gives its input, and back a gradient that lies in columns."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return transposed(lambda: gradient)


def test_gradients_unlike_their_prediction_are_seen(bench):
    case = "op:tanh/fake_backward/float32"
    assert bench.status(case) is PASS
    bench.plant_results("tanh", lambda right, x: right(Transposing.apply(x)))
    assert bench.status("op:tanh/fake/float32") is PASS
    outcome = bench.outcome(case)
    assert outcome.status is FAIL
    assert "predicted by fake tensors" in outcome.message
    assert outcome.upstream_samples == 0


def test_results_that_depend_on_the_data_are_not_predicted(bench):
    assert bench.status("op:nonzero/fake/float32") is PASS
    outcome = bench.outcome("op:nonzero/meta/float32")
    assert outcome.status is NA
    assert outcome.message.startswith("the meta device:")


def test_a_kernel_that_looks_at_the_data_is_seen(bench):
    def peeking(right, x, **options):
        return right(x, **options) if x.flatten()[0] != 0.123 else x

    bench.plant("tanh", peeking)
    outcome = bench.outcome("op:tanh/fake/float32")
    assert outcome.status is FAIL
    assert "those of the CPU can" in outcome.message


def test_strides_of_lone_and_empty_dimensions_do_not_matter(bench):
    def other_strides(right, *args, **kwargs):
        result = right(*args, **kwargs)
        if result.numel():
            return result
        return result.as_strided(result.shape, [7] * result.dim())

    bench.plant_results("tanh", other_strides)
    assert bench.status("op:tanh/meta/float32") is PASS


# --- vmap


def test_an_operator_that_is_wrong_in_a_batch_is_seen(bench):
    def wrong_in_batch(right, x):
        return right(x) * (2 if torch._C._functorch.is_batchedtensor(x) else 1)

    assert bench.status("op:tanh/vmap/float32") is PASS
    bench.plant("tanh", wrong_in_batch)
    assert bench.status("op:tanh/forward/float32") is PASS
    outcome = bench.outcome("op:tanh/vmap/float32")
    assert (outcome.status, outcome.upstream_samples) == (FAIL, 0)


def test_what_torch_cannot_map_is_not_asked(bench):
    outcome = bench.outcome("op:nonzero/vmap/float32")
    assert outcome.status is NA
    assert "cannot map" in outcome.message
