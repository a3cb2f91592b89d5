# SPDX-License-Identifier: BSD-3-Clause
"""A legacy constructor is given a device.

Defect: `torch.FloatTensor` names the CPU's type; another device is an error.
Passes on the CPU: the device given is the one it knows.
Kind: https://github.com/vwxyzjn/cleanrl/pull/302
"""

import torch


def wrong(device: str) -> None:
    """Calls torch.FloatTensor(..., device=...)."""
    x = torch.randn(3, device=device)
    torch.mul(x, torch.FloatTensor([1.0, 2.0, 3.0], device=x.device))


def fixed(device: str) -> None:
    """Calls torch.tensor, which takes any device."""
    x = torch.randn(3, device=device)
    torch.mul(x, torch.tensor([1.0, 2.0, 3.0], device=x.device))
