# SPDX-License-Identifier: BSD-3-Clause
"""An extractor registers a forward hook and never removes it.

Defect: the model keeps each extractor, and each extractor the activations it saw.
Passes on the CPU: results are right, memory grows unseen.
Kind: https://github.com/frgfm/torch-cam/issues/197
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

CHECK = "leak"


def _extract(model: nn.Module, x: torch.Tensor, remove: bool) -> None:
    seen = []

    def keep(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
        seen.append(output.detach())

    handle = model.register_forward_hook(keep)
    model(x)
    if remove:
        handle.remove()


def wrong(device: str) -> Callable[[], object]:
    """Leaves the hook on the model."""
    model, x = nn.Linear(4, 64).to(device), torch.randn(4, 4, device=device)
    return lambda: _extract(model, x, remove=False)


def fixed(device: str) -> Callable[[], object]:
    """Removes it after use."""
    model, x = nn.Linear(4, 64).to(device), torch.randn(4, 4, device=device)
    return lambda: _extract(model, x, remove=True)
