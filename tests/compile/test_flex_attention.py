# SPDX-License-Identifier: BSD-3-Clause
"""flex_attention: eager is the CPU's to the bit, compiled code is eager's with its gradients."""

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from torch_npusim import patches
from torch_npusim.sim import dry_run


def causal(batch, head, query, key):
    return query >= key


def attention(device, *, masked, gradients, compiled, heads=2):
    torch.manual_seed(0)
    q, k, v = (
        torch.randn(2, n, 16, 8).to(device).requires_grad_(gradients) for n in (2, heads, heads)
    )
    bias = torch.randn(16).to(device)
    mask = create_block_mask(causal, None, None, 16, 16, device=device) if masked else None

    def function(q, k, v):
        def score(value, batch, head, query, key):
            return value + bias[query] * (query - key)

        return flex_attention(q, k, v, score_mod=score, block_mask=mask, enable_gqa=heads == 1)

    result = (torch.compile(function, fullgraph=True) if compiled else function)(q, k, v)
    if gradients:
        result.square().sum().backward()
    return [one.detach().cpu() for one in (result, q.grad, k.grad, v.grad) if one is not None]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("heads", [1, 2])
def test_eager_is_the_cpus(masked, heads):
    options = {"masked": masked, "gradients": False, "compiled": False, "heads": heads}
    (here,), (there,) = attention("npusim", **options), attention("cpu", **options)
    assert torch.equal(here, there)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("heads", [1, 2])
def test_compiled_is_eager_with_its_gradients(masked, heads):
    options = {"masked": masked, "gradients": True, "heads": heads}
    eager = attention("npusim", compiled=False, **options)
    compiled = attention("npusim", compiled=True, **options)
    assert len(eager) == 4
    for one, other in zip(compiled, eager, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_a_dry_run_as_cuda_has_no_scores():
    torch.compiler.reset()
    with dry_run(spec="a100-80-sxm", temporaries="cuda"):
        q, k = (
            torch.randn(1, heads, 512, 16, device="npusim", requires_grad=True) for heads in (4, 2)
        )
        mask = create_block_mask(causal, None, None, 512, 512, device="npusim")
        function = torch.compile(
            lambda q, k: flex_attention(q, k, k, block_mask=mask, enable_gqa=True)
        )
        function(q, k).sum().backward()
        q.grad = k.grad = None
        before = torch.npusim.memory_allocated()
        torch.npusim.reset_peak_memory_stats()
        result = function(q, k)
        sums = 4 * 512 * 4  # logarithms of a row's sum, in float32
        assert torch.npusim.max_memory_allocated() - before == result.nbytes + sums
        result.sum().backward()
        assert (q.grad.shape, k.grad.shape) == (q.shape, k.shape)
        assert torch.npusim.max_memory_allocated() - before < 4 * 512 * 512 * 4  # scores of a head
    with pytest.raises(RuntimeError, match="code that was compiled in a dry run computes nothing"):
        torch.ops.npusim.flex_attention(*(torch.ones(1, 2, 4, 8, device="npusim"),) * 3)
    torch.compiler.reset()


def test_templates_still_know_no_other_device():
    """When this fails, Inductor asks the backend for a template, and two patches can go."""
    targets = [
        f"torch._higher_order_ops.flex_attention:{name}.python_key_table"
        for name in ("flex_attention", "flex_attention_backward")
    ]
    options = {"masked": False, "gradients": True, "compiled": True}
    for target in targets:
        torch._dynamo.reset()
        with patches.undone(target), pytest.raises(Exception):  # noqa: B017, PT011
            attention("npusim", **options)


def test_the_patch_is_still_needed():
    """When this fails, the check of the device's name can stay as it is."""
    x = torch.ones(2, 2, 16, 8, device="npusim")
    with pytest.raises(ValueError, match="only supported on CUDA, CPU, HPU, or MPS"):
        patches.original("torch.nn.attention.flex_attention:_validate_device")(x, x, x)
