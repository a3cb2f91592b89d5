# SPDX-License-Identifier: BSD-3-Clause
"""On resume the optimizer's state is loaded first, and the model moved after that.

Defect: `load_state_dict` puts the state where the parameters are at that moment.
Passes on the CPU: nothing moves.
Kind: https://github.com/rasbt/LLMs-from-scratch/issues/232
"""

from typing import Any

import torch
from torch import nn


def _saved_state() -> dict[str, Any]:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(2, 3)).sum().backward()
    optimizer.step()
    return optimizer.state_dict()


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, device: str) -> None:
    model(torch.randn(2, 3, device=device)).sum().backward()
    optimizer.step()


def wrong(device: str) -> None:
    """Moves the model after the optimizer was restored."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.load_state_dict(_saved_state())
    model.to(device)
    _train(model, optimizer, device)


def fixed(device: str) -> None:
    """Moves the model, makes the optimizer, restores it."""
    model = nn.Linear(3, 1).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.load_state_dict(_saved_state())
    _train(model, optimizer, device)
