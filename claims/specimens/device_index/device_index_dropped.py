# SPDX-License-Identifier: BSD-3-Clause
"""A helper keeps the type of a device and loses its index.

Defect: `device.type` without an index means the current device, which is another one.
Passes on the CPU: it has no index. The harness passes the second device.
Kind: https://github.com/pyro-ppl/pyro/issues/623
"""

import torch

DEVICE_INDEX = 1


def wrong(device: str) -> None:
    """Makes the mask on the first device of the type."""
    x = torch.randn(3, device=device)
    mask = torch.ones(3, device=x.device.type)
    torch.mul(x, mask)


def fixed(device: str) -> None:
    """Makes the mask on the device of the data."""
    x = torch.randn(3, device=device)
    mask = torch.ones(3, device=x.device)
    torch.mul(x, mask)
