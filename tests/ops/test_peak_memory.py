# SPDX-License-Identifier: BSD-3-Clause
"""Peak device memory on route iii: that of an operator with a structured kernel and the same
results. Temporaries of the CPU's kernels are the host's (rule M13), at a first call too.
"""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from oracle import DEVICE

from torch_npusim.sim import fallback

aten = torch.ops.aten
ROWS, COLUMNS = 64, 1024


class Pair(NamedTuple):
    """Two operators with results of the same shapes and dtypes."""

    call: Callable[[torch.Tensor, torch.Tensor], object]
    twin: Callable[[torch.Tensor, torch.Tensor], object]


def integers(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.int32)


PAIRS = {
    "hypot": Pair(torch.hypot, torch.maximum),
    "copysign": Pair(torch.copysign, torch.mul),
    "nextafter": Pair(torch.nextafter, torch.div),
    "heaviside": Pair(torch.heaviside, torch.sub),
    "logaddexp": Pair(torch.logaddexp, torch.add),
    "special.i0e": Pair(lambda x, y: torch.special.i0e(x), lambda x, y: x.exp()),
    "polygamma": Pair(lambda x, y: torch.polygamma(1, x), lambda x, y: x.sin()),
    "gcd": Pair(lambda x, y: integers(x).gcd(integers(y)), lambda x, y: integers(x) + integers(y)),
    "logcumsumexp": Pair(lambda x, y: x.logcumsumexp(1), lambda x, y: x.cumsum(1)),
    "cummax": Pair(lambda x, y: x.cummax(1), lambda x, y: x[:, None].max(1)),
    # The CPU's kernel partitions values and their indices in copies.
    "kthvalue": Pair(lambda x, y: x.kthvalue(1, 1), lambda x, y: x.max(1)),
}


def peak_of(call: Callable[[], object]) -> int:
    """Bytes at the peak of the call, above what was there before."""
    before = torch.npusim.memory_allocated()
    torch.npusim.reset_peak_memory_stats()
    call()
    return torch.npusim.max_memory_allocated() - before


@pytest.mark.parametrize("name", PAIRS)
def test_a_fallback_needs_what_its_structured_twin_needs(name):
    pair = PAIRS[name]
    x, y = (torch.rand(ROWS, COLUMNS).add_(0.5).to(DEVICE) for _ in range(2))
    fallback.reset()
    twin = peak_of(lambda: pair.twin(x, y))
    assert fallback.counts() == {}
    first, second = (peak_of(lambda: pair.call(x, y)) for _ in range(2))
    assert sum(fallback.counts().values()) == 2
    assert first == second == twin


def test_a_first_evaluation_needs_what_the_next_does():
    """A batch norm's evaluation makes other temporaries than training with the same shapes."""
    norm, x = torch.nn.BatchNorm1d(8, device=DEVICE), torch.ones(16, 8, device=DEVICE)

    def allocations_of_a_call():
        before = torch.npusim.memory_stats()["allocation.all.allocated"]
        norm(x)
        return torch.npusim.memory_stats()["allocation.all.allocated"] - before

    for _ in range(3):
        norm(x)
    norm.eval()
    assert allocations_of_a_call() == allocations_of_a_call()
