# SPDX-License-Identifier: BSD-3-Clause
"""Kernels of torch that read memory behind an operand: right here, still wrong on the CPU."""

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


def test_upstream_kernels_still_read_behind_their_operands():
    """When this fails, a row of docs/reference/torch_faults.md can go, and kReadsBehind's."""
    assert expanded("cpu").median(0).values.min() == BEHIND
    assert expanded("cpu").nanmedian(0).values.min() == BEHIND
    got, expected = normalized("cpu")
    assert not torch.equal(got, expected)
    got, expected = gathered("cpu")
    assert not torch.equal(got, expected)
