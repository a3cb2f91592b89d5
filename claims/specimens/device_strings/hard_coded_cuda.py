# SPDX-License-Identifier: BSD-3-Clause
"""Code for "the accelerator" calls .cuda().

Defect: another accelerator is not CUDA.
Passes on the CPU: the branch is not taken.
Kind: https://github.com/pykale/pykale/issues/542
"""

import torch


def wrong(device: str) -> None:
    """Takes every device that is not the CPU for CUDA."""
    mean, features = torch.zeros(3), torch.randn(2, 3, device=device)
    if features.device.type != "cpu":
        mean = mean.cuda()
    torch.sub(features, mean)


def fixed(device: str) -> None:
    """Follows the data."""
    mean, features = torch.zeros(3), torch.randn(2, 3, device=device)
    torch.sub(features, mean.to(features.device))
