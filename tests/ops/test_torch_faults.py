# SPDX-License-Identifier: BSD-3-Clause
"""Kernels of torch that misread an operand: right here, still wrong on the CPU."""

import pytest
import torch

BEHIND = -5.0


def expanded(device, sizes=(2, 4, 4)):
    """Numbers from 0 on, repeated along the first dimension; behind them lies BEHIND."""
    count = sizes[1] * sizes[2]
    buffer = torch.full((count + 64,), BEHIND, device=device)
    return buffer[:count].copy_(torch.arange(float(count))).view(sizes[1:]).expand(sizes)


def normalized(device):
    """A group norm whose weight is one number, and one whose weight is that number four times."""
    x = torch.arange(24.0, device=device).view(2, 4, 3)
    weight = torch.tensor([2.0, BEHIND, BEHIND, BEHIND], device=device)[:1].expand(4)
    return [
        torch.native_group_norm(x, w, w, 2, 4, 3, 2, 1e-5)[0] for w in (weight, weight.contiguous())
    ]


@pytest.mark.parametrize("name", ["median", "nanmedian"])
@pytest.mark.parametrize("sizes", [(2, 4, 4), (3, 300, 4), (2, 4, 400)])
def test_a_median_reads_nothing_behind_its_operand(name, sizes):
    x = expanded("npusim", sizes)
    for dim in range(3):
        got, expected = getattr(x, name)(dim), getattr(x.cpu().contiguous(), name)(dim)
        assert torch.equal(got.values.cpu(), expected.values)
    out = torch.empty(0, device="npusim"), torch.empty(0, dtype=torch.int64, device="npusim")
    assert getattr(torch, name)(x, 0, out=out).values.cpu().min() == 0


def test_a_group_norm_reads_nothing_behind_its_weight():
    got, expected = normalized("npusim")
    assert torch.equal(got, expected)


def gathered(device):
    """The results of an expanded index of int32, and of the same index in full."""
    x = torch.arange(50.0, device=device).view(10, 5)
    index = torch.tensor([[4], [2], [5]], dtype=torch.int32, device=device).expand(3, 5)
    return x.gather(0, index), x.gather(0, index.contiguous())


def test_an_expanded_index_is_read_in_its_own_width():
    got, expected = gathered("npusim")
    assert torch.equal(got, expected)


HIDDEN = [((1, 2, 5, 1), (10, 1, 2, 1)), ((2, 3, 5, 1, 1), (15, 1, 3, 15, 1))]


def normalized_backward(device, shape, strides=None):
    """The gradients of a batch norm: of a gradient, then of an input that lies with `strides`."""
    torch.manual_seed(0)
    x, grad = torch.randn(shape, device="cpu"), torch.randn(shape, device="cpu")

    def laid(tensor):
        there = torch.empty_strided(shape, strides or tensor.stride(), device=device)
        return there.copy_(tensor)

    ones = torch.ones(shape[1], device=device)
    backward = torch.ops.aten.native_batch_norm_backward
    return [
        result.cpu()
        for g, y in ((laid(grad), x.to(device)), (grad.to(device), laid(x)))
        for result in backward(g, y, ones, None, None, ones, ones, True, 1e-5, [True] * 3)
    ]


@pytest.mark.parametrize(("shape", "strides"), HIDDEN)
def test_a_batch_norm_sees_that_channels_are_last(shape, strides):
    got = normalized_backward("npusim", shape, strides)
    for one, other in zip(got, normalized_backward("cpu", shape), strict=True):
        assert torch.equal(one, other)


def places_of_nothing(device, dims=2):
    """The input of a pooling, in the middle of a buffer, with a window that holds no element."""
    buffer = torch.zeros(48, device=device)
    x = buffer[16:19].view(1, *[1] * (dims - 1), 3, 1)
    pool = getattr(torch.nn.functional, f"max_pool{dims}d")
    step = (*[1] * (dims - 1), 2)
    return buffer, x, *pool(x, 3, 3, 1, step, ceil_mode=True, return_indices=True)


@pytest.mark.parametrize("dims", [2, 3])
def test_the_gradient_of_a_window_without_elements_is_written_nowhere(dims):
    _, x, values, places = places_of_nothing("npusim", dims)
    step = [*[1] * (dims - 1), 2]
    backward = getattr(torch.ops.aten, f"max_pool{dims}d_with_indices_backward")
    numbers = [3] * dims, [3] * dims, [1] * dims, step, True
    got = backward(torch.ones_like(values), x, *numbers, places).cpu().flatten()
    places = places.cpu().flatten()
    assert places.max() >= 3  # as on CUDA
    assert torch.equal(got, places[places < 3].bincount(minlength=3).float())


def test_upstream_kernels_still_misread_their_operands():
    """When this fails, a row of docs/reference/torch_faults.md can go, and kReadsBehind's."""
    assert expanded("cpu").median(0).values.min() == BEHIND
    assert expanded("cpu").nanmedian(0).values.min() == BEHIND
    got, expected = normalized("cpu")
    assert not torch.equal(got, expected)
    got, expected = gathered("cpu")
    assert not torch.equal(got, expected)
    for shape, strides in HIDDEN:
        one, other = (
            normalized_backward("cpu", shape, strides)[0],
            normalized_backward("cpu", shape)[0],
        )
        assert not torch.allclose(one, other)
    assert places_of_nothing("cpu")[-1].max() >= 3
