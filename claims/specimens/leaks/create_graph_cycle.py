# SPDX-License-Identifier: BSD-3-Clause
"""Second derivatives are prepared with backward(create_graph=True).

Defect: parameter, gradient and graph keep each other alive, out of the collector's sight.
Passes on the CPU: results are right, memory grows unseen.
Kind: https://github.com/rfeinman/pytorch-minimize/issues/29
"""

import warnings
from collections.abc import Callable

import torch

CHECK = "leak"


def wrong(device: str) -> Callable[[], object]:
    """Lets backward() store gradients with graphs."""

    def step() -> None:
        x = torch.randn(256, device=device, requires_grad=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of this very leak
            x.tanh().sum().backward(create_graph=True)  # type: ignore[no-untyped-call]

    return step


def fixed(device: str) -> Callable[[], object]:
    """Asks autograd.grad for them."""

    def step() -> None:
        x = torch.randn(256, device=device, requires_grad=True)
        torch.autograd.grad(x.tanh().sum(), x, create_graph=True)

    return step
