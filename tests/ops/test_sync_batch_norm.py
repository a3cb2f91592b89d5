# SPDX-License-Identifier: BSD-3-Clause
"""The pieces of SyncBatchNorm on npusim: two parts of a batch, put together, are batch_norm."""

import pytest
import torch
import torch.nn.functional as F

import torch_npusim  # noqa: F401  (for where autoload has stepped back)

DEV = "npusim"
EPS, MOMENTUM = 1e-5, 0.2


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [(10, 3), (10, 3, 4, 5)], ids=str)
def test_two_parts_make_a_whole(shape, affine):
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    grad = torch.randn(shape, generator=generator, dtype=torch.float64)
    weight, bias = (torch.randn(3, generator=generator, dtype=torch.float64) for _ in range(2))

    leaf, w, b = (t.clone().requires_grad_() for t in (x, weight, bias))
    running = [torch.zeros(3).double(), torch.ones(3).double()]
    expected = F.batch_norm(
        leaf, *running, *((w, b) if affine else (None, None)), True, MOMENTUM, EPS
    )
    expected.backward(grad)

    device_running = [torch.zeros(3).double().to(DEV), torch.ones(3).double().to(DEV)]
    scale = (weight.to(DEV), bias.to(DEV)) if affine else (None, None)
    parts, grads = x.to(DEV).split([4, 6]), grad.to(DEV).split([4, 6])
    stats = [torch.batch_norm_stats(part, EPS) for part in parts]
    counts = torch.tensor([part.numel() / 3 for part in parts], dtype=torch.float64, device=DEV)
    mean, invstd = torch.batch_norm_gather_stats_with_counts(
        parts[0],
        torch.stack([stat[0] for stat in stats]),
        torch.stack([stat[1] for stat in stats]),
        *device_running,
        MOMENTUM,
        EPS,
        counts,
    )
    out = torch.cat([torch.batch_norm_elemt(part, *scale, mean, invstd, EPS) for part in parts])
    torch.testing.assert_close(out.cpu(), expected.detach())
    for ours, theirs in zip(device_running, running, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs)

    sums = [
        torch.batch_norm_backward_reduce(g, part, mean, invstd, scale[0], True, True, True)
        for g, part in zip(grads, parts, strict=True)
    ]
    sum_dy, sum_dy_xmu, grad_weight, grad_bias = (sum(each) for each in zip(*sums, strict=True))
    if affine:
        torch.testing.assert_close(grad_weight.cpu(), w.grad)
        torch.testing.assert_close(grad_bias.cpu(), b.grad)
    grad_input = torch.cat(
        [
            torch.batch_norm_backward_elemt(
                g, part, mean, invstd, scale[0], sum_dy, sum_dy_xmu, counts.int()
            )
            for g, part in zip(grads, parts, strict=True)
        ]
    )
    torch.testing.assert_close(grad_input.cpu(), leaf.grad)


def test_statistics_are_the_cpus_and_wide_for_narrow_inputs():
    x = torch.randn(8, 3, 5, generator=torch.Generator().manual_seed(8))
    _, mean, invstd = torch.native_batch_norm(x, None, None, None, None, True, 0.0, EPS)
    got = torch.batch_norm_stats(x.to(DEV), EPS)
    assert torch.equal(got[0].cpu(), mean)
    assert torch.equal(got[1].cpu(), invstd)
    half = torch.batch_norm_stats(x.half().to(DEV), EPS)
    assert half[0].dtype == torch.float32
    elemt = torch.batch_norm_elemt(x.half().to(DEV), None, None, *half, EPS)
    assert elemt.dtype == torch.float16


def test_gather_stats_with_one_count():
    x = torch.randn(8, 3, device=DEV)
    mean, invstd = torch.batch_norm_stats(x, EPS)
    both = torch.batch_norm_gather_stats(x, mean[None], invstd[None], None, None, MOMENTUM, EPS, 8)
    torch.testing.assert_close(both[0], mean)
    torch.testing.assert_close(both[1], invstd)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_parameters_go_beside_wide_statistics_as_on_cuda(dtype):
    """As FSDP's mixed precision leaves a module: it casts parameters and no buffers."""

    def run(x, module):
        y = module(x)
        y.float().square().sum().backward()
        return y, x.grad, module.weight.grad, module.bias.grad, module.running_var

    def made(shape, kind, grad=True):
        torch.manual_seed(0)
        module = kind(shape[1])
        torch.nn.init.normal_(module.weight)
        for name in ("weight", "bias"):
            setattr(module, name, torch.nn.Parameter(getattr(module, name).to(dtype)))
        x = torch.randn(shape).to(dtype)
        return module.to("npusim"), x.to("npusim").requires_grad_(grad)

    module, x = made((8, 4), torch.nn.BatchNorm1d)
    found = run(x, module)
    wide = torch.nn.BatchNorm1d(4)
    wide.weight.data.copy_(module.weight)
    wide.bias.data.copy_(module.bias)
    wanted = run(x.detach().cpu().float().requires_grad_(), wide)
    assert [one.dtype for one in found] == [dtype] * 4 + [torch.float32]
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.float().cpu(), other, rtol=0.05, atol=0.05)
    module, x = made((3, 4, 9, 9), torch.nn.BatchNorm2d)
    with pytest.raises(RuntimeError, match="Expected running_mean to have type"):
        run(x, module)
    module, x = made((3, 4, 9, 9), torch.nn.BatchNorm2d, grad=False)
    module(x).sum().backward()
