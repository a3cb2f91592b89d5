# SPDX-License-Identifier: BSD-3-Clause
"""Gradient clipping is told to raise on a norm that is not finite.

Defect: the norm is read by the host at every step.
Passes on the CPU: the host has it anyway.
Kind: https://github.com/pytorch/pytorch/issues/60691
"""

from collections.abc import Callable

import torch
from torch.nn.utils import clip_grad_norm_

CHECK = "sync"


def _weights(device: str) -> torch.Tensor:
    weights = torch.ones(4, device=device, requires_grad=True)
    weights.grad = torch.full_like(weights, 3.0)
    return weights


def wrong(device: str) -> Callable[[], object]:
    """Checks at every step."""
    weights = _weights(device)
    return lambda: clip_grad_norm_([weights], 1.0, error_if_nonfinite=True)


def fixed(device: str) -> Callable[[], object]:
    """Clips; whoever logs the norm looks at it now and then."""
    weights = _weights(device)
    return lambda: clip_grad_norm_([weights], 1.0)
