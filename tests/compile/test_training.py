# SPDX-License-Identifier: BSD-3-Clause
"""Training steps compiled for npusim: gradients, optimizers, dropout that is drawn again."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from torch_npusim import patches


def layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4)).npusim()


def test_three_steps_with_a_compiled_optimizer():
    eager = layers()
    model = copy.deepcopy(eager)
    rows = torch.randn(8, 16, device="npusim")

    def trained(model, compile):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

        def loss():
            return model(rows).square().mean()

        loss, step = (torch.compile(f) if compile else f for f in (loss, optimizer.step))
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            value = loss()
            value.backward()
            step()
            losses.append(value.item())
        return losses

    expected = trained(eager, compile=False)
    found = trained(model, compile=True)
    assert expected[0] > expected[1] > expected[2]
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected))
    for ours, theirs in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_checkpointed_dropout_has_one_mask():
    def body(x, weight):
        return F.dropout(x * weight, 0.5).sin()

    def function(x, weight):
        return checkpoint(body, x, weight, use_reentrant=False)

    compiled = torch.compile(function, fullgraph=True)
    weight = torch.full((256,), 0.01, device="npusim")
    masks = []
    for _ in range(3):
        x = torch.ones(256, device="npusim", requires_grad=True)
        y = compiled(x, weight)
        y.sum().backward()
        # Small arguments: the sine is linear, so the result is the gradient where it is kept.
        torch.testing.assert_close(y.detach(), x.grad, rtol=1e-3, atol=1e-6)
        masks.append((y != 0).tolist())
        assert 64 < sum(masks[-1]) < 192
    assert masks[0] != masks[1] != masks[2]


@pytest.mark.skipif(patches.is_version("<2.14"), reason="no graph of 2.13 has such an operator")
def test_generators_of_fallbacks_are_still_named():
    """When this fails, the patch can go: the lowering asks any accelerator for its generator."""
    torch._dynamo.reset()
    with (
        patches.undone("torch._inductor.ir:ExternKernel.process_kernel"),
        torch._inductor.config.patch(fx_graph_cache=False),
        pytest.raises(Exception, match=r"Expected arg\.device\.type in"),
    ):
        test_a_checkpointed_dropout_has_one_mask()


def test_fallback_random_is_eagers():
    def function(x):
        return F.dropout(x, 0.5) + torch.rand_like(x) * torch.randn(64, device=x.device)

    x = torch.ones(64, device="npusim")
    with torch._inductor.config.patch(fallback_random=True):
        compiled = torch.compile(function, fullgraph=True)
        torch.manual_seed(7)
        found = [compiled(x) for _ in range(2)]
    torch.manual_seed(7)
    for ours in found:
        torch.testing.assert_close(ours, function(x))


class Squared(torch.autograd.Function):
    """With a backward pass of its own."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 2 * x


def test_compiled_autograd():
    """One graph of the whole backward pass, with hooks and a Function of the user's."""

    def gradients(compile):
        torch._dynamo.reset()
        model, norms = layers(), []
        model[1].weight.register_hook(lambda gradient: gradient * 2)
        model[3].weight.register_post_accumulate_grad_hook(lambda p: norms.append(p.grad.norm()))

        def step(rows):
            Squared.apply(model(rows)).sum().backward()

        with torch._dynamo.config.patch(compiled_autograd=compile):
            run = torch.compile(step) if compile else step
            for _ in range(2):
                run(torch.ones(8, 16, device="npusim"))
        return [p.grad for p in model.parameters()] + norms

    expected = gradients(False)
    torch._dynamo.utils.counters.clear()
    found = gradients(True)
    assert torch._dynamo.utils.counters["compiled_autograd"]["captures"] >= 1
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
