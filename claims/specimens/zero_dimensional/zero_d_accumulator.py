# SPDX-License-Identifier: BSD-3-Clause
"""A loss is summed in place into a 0-d tensor on the CPU.

Defect: 0-d host tensors may be operands on a device, but not results of device operands.
Passes on the CPU: the sum is where its terms are.
Kind: https://github.com/lightly-ai/lightly/issues/1884
"""

import torch


def wrong(device: str) -> None:
    """Adds losses on the device to a total on the CPU."""
    total = torch.tensor(0.0)
    for view in torch.randn(3, 8, device=device):
        total += view.square().mean()


def fixed(device: str) -> None:
    """Makes the total from the data."""
    views = torch.randn(3, 8, device=device)
    total = views.new_zeros(())
    for view in views:
        total += view.square().mean()
