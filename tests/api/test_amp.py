# SPDX-License-Identifier: BSD-3-Clause
"""torch.npusim.amp: autocast and GradScaler."""

import pytest
import torch
from torch import nn


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_supported_dtypes_are_accepted(dtype):
    assert dtype in torch.npusim.get_amp_supported_dtype()
    with torch.autocast("npusim", dtype=dtype):
        assert torch.is_autocast_enabled("npusim")
        assert torch.get_autocast_dtype("npusim") == dtype
    assert not torch.is_autocast_enabled("npusim")


def test_other_dtypes_are_declined_with_a_warning():
    with pytest.warns(UserWarning, match="float64|not supported"):
        context = torch.autocast("npusim", dtype=torch.float64)
    with context:
        assert not torch.is_autocast_enabled("npusim")


def test_amp_autocast_is_torch_autocast_for_npusim():
    with torch.npusim.amp.autocast(dtype=torch.bfloat16):
        assert torch.is_autocast_enabled("npusim")
        assert torch.get_autocast_dtype("npusim") == torch.bfloat16
        with torch.npusim.amp.autocast(enabled=False):
            assert not torch.is_autocast_enabled("npusim")


def test_custom_functions_run_with_the_dtype_asked_for():
    seen = []

    class Square(torch.autograd.Function):
        @staticmethod
        @torch.npusim.amp.custom_fwd(cast_inputs=torch.float32)
        def forward(ctx, x):
            seen.append((x.dtype, torch.is_autocast_enabled("npusim")))
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @torch.npusim.amp.custom_bwd
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return 2 * x * grad

    x = torch.ones(3, device="npusim", dtype=torch.float16, requires_grad=True)
    with torch.autocast("npusim"):
        y = Square.apply(x)
    y.sum().backward()
    assert seen == [(torch.float32, False)]
    assert x.grad.tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    "make", [torch.npusim.amp.GradScaler, lambda: torch.amp.GradScaler("npusim")]
)
def test_scaler_skips_steps_with_infinite_gradients(make):
    weight = nn.Parameter(torch.ones(2, device="npusim"))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = make()
    before = scaler.get_scale()
    scaler.scale((weight * float("inf")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() == [1, 1]
    assert scaler.get_scale() == before / 2
    optimizer.zero_grad()
    scaler.scale(weight.sum()).backward()
    scaler.step(optimizer)
    assert weight.tolist() == [0, 0]


def test_submodules_are_real_modules():
    from torch.npusim.amp.autocast_mode import autocast
    from torch.npusim.amp.grad_scaler import GradScaler

    assert autocast is torch.npusim.amp.autocast
    assert GradScaler is torch.npusim.amp.GradScaler
