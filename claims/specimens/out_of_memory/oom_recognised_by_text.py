# SPDX-License-Identifier: BSD-3-Clause
"""Out of memory is recognised by CUDA's words.

Defect: the message of another device is different, so the batch size is not reduced.
Passes on the CPU: the batch fits. The harness limits the device's memory.
Kind: https://github.com/huggingface/accelerate/pull/3236
"""

import torch

DEVICE_MEMORY = 24 << 20


def wrong(device: str) -> None:
    """Looks for "CUDA out of memory"."""
    size = 32 << 20
    while size > 1:
        try:
            torch.empty(size, dtype=torch.uint8, device=device)
            return
        except RuntimeError as error:
            if "CUDA out of memory" not in str(error):
                raise
        size //= 2


def fixed(device: str) -> None:
    """Catches the type that all devices raise."""
    size = 32 << 20
    while size > 1:
        try:
            torch.empty(size, dtype=torch.uint8, device=device)
            return
        except torch.OutOfMemoryError:
            size //= 2
