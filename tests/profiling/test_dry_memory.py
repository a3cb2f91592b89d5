# SPDX-License-Identifier: BSD-3-Clause
"""Storages and strides of a dry run are those of the real run.

Whole trainings, allocation by allocation, are tests/search/training.py.
"""

import pytest
import torch
import torch.nn.functional as F
from processes import python

from torch_npusim.sim import dry_run


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize(
    "loss", [F.mse_loss, F.smooth_l1_loss, F.l1_loss, F.huber_loss, F.binary_cross_entropy]
)
def test_losses_keep_the_storage_that_torch_gives_them(loss, reduction):
    """Some reduced losses keep the bytes of the unreduced one, on CUDA too."""
    given = torch.linspace(0.1, 0.9, 12).view(3, 4)

    def answer(device):
        result = loss(given.to(device), given.flip(0).to(device), reduction=reduction)
        return result.shape, result.stride(), result.untyped_storage().nbytes()

    with dry_run():
        dry = answer("npusim")
    assert dry == answer("npusim") == answer("cpu")


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("turned", ["input", "gradient", "both"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_batch_norms_of_turned_operands_lie_alike(dtype, turned, training):
    aten = torch.ops.aten

    def operand(is_turned):
        x = torch.ones((2, 4, 3) if is_turned else (2, 3, 4), device="npusim").to(dtype)
        return x.transpose(1, 2) if is_turned else x

    def answer():
        x, gradient = operand(turned != "gradient"), operand(turned != "input")
        channels = torch.ones(3, device="npusim")
        made = [
            aten.native_batch_norm(x, *[channels] * 4, training, 0.1, 1e-5)[0],
            aten._native_batch_norm_legit(x, *[channels] * 4, training, 0.1, 1e-5)[0],
            aten.native_batch_norm_backward(
                gradient, x, *[channels] * 5, training, 1e-5, [True] * 3
            )[0],
        ]
        return [(t.shape, t.stride(), t.dtype) for t in made]

    with dry_run():
        dry = answer()
    assert dry == answer()


HISTORY = """
import torch, torch_npusim
from torch_npusim.sim import dry_run
memory = torch.npusim.memory
memory._record_memory_history()
with {block}:
    x = torch.ones(1 << 20, device="npusim")
    print(*[entry["action"] for entry in memory._snapshot()["device_traces"][0]])
"""


@pytest.mark.parametrize(
    ("block", "variables"),
    [("dry_run()", {}), ("torch.no_grad()", {"NPUSIM_DRY_RUN": "1"})],
    ids=["block", "variable"],
)
def test_a_history_that_began_before_a_dry_run_goes_on_in_it(block, variables):
    done = python("-c", HISTORY.format(block=block), variables=variables)
    assert done.stdout == "segment_alloc alloc snapshot\n"
