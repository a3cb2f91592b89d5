# SPDX-License-Identifier: BSD-3-Clause
"""Random numbers at every position of a tensor, and of more than 32 bits."""

from collections.abc import Callable

import torch

from npusim_conformance.contracts import contract
from npusim_conformance.properties.base import Run, require


@contract()
def every_position_is_drawn(run: Run) -> None:
    """Each element is drawn, the last of odd and large counts too: no position repeats a value."""
    fills: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "normal_": lambda tensor: tensor.normal_(5, 1),
        "uniform_": lambda tensor: tensor.uniform_(2, 3),
        "exponential_": lambda tensor: tensor.exponential_(),
    }
    for name, fill in fills.items():
        for count in (1, 3, 15, 17, 1023):
            drawn = torch.stack([fill(torch.empty(count, device=run.device)) for _ in range(4)])
            still = (drawn[1:] == drawn[:1]).all(0).cpu().nonzero().flatten().tolist()
            require(not still, f"{name}() of {count} elements: those at {still[:4]} never change")


@contract()
def whole_numbers_have_all_their_bits(run: Run) -> None:
    """randint() and random_() to a bound of 2 ** 40 draw each of the 40 bits as 0 and as 1."""
    bits = torch.arange(40)
    draws = {
        "randint": torch.randint(2**40, (512,), device=run.device),
        "random_": torch.empty(512, dtype=torch.int64, device=run.device).random_(0, 2**40),
    }
    for name, drawn in draws.items():
        ones = ((drawn.cpu()[:, None] >> bits) & 1).float().mean(0)
        wrong = ((ones < 0.25) | (ones > 0.75)).nonzero().flatten().tolist()
        require(not wrong, f"{name}() to 2 ** 40: bits {wrong} are not as often 0 as 1")
