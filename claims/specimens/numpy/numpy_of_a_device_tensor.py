# SPDX-License-Identifier: BSD-3-Clause
"""A result is converted with .numpy() without being copied to the host.

Defect: NumPy cannot see device memory.
Passes on the CPU: tensors and arrays share memory there.
Kind: https://github.com/JDAI-CV/fast-reid/pull/509
"""

import torch


def wrong(device: str) -> None:
    """Calls .numpy() on the distances."""
    torch.cdist(torch.randn(2, 3, device=device), torch.randn(2, 3, device=device)).numpy()


def fixed(device: str) -> None:
    """Copies them to the host first."""
    torch.cdist(torch.randn(2, 3, device=device), torch.randn(2, 3, device=device)).cpu().numpy()
