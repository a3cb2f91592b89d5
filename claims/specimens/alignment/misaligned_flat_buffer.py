# SPDX-License-Identifier: BSD-3-Clause
"""Parameters are packed into a flat buffer without padding.

Defect: vectorised kernels need aligned operands; a slice at an odd offset is not aligned.
Passes on the CPU: any offset will do. The harness sets strict alignment to "error".
Kind: https://github.com/Jim137/qkan/issues/26
"""

import torch

STRICT_ALIGNMENT = "error"
SIZES = (5, 8)


def _update(device: str, quantum: int) -> None:
    spans = [-(-size // quantum) * quantum for size in SIZES]
    flat = torch.zeros(sum(spans), device=device)
    start = 0
    for size, span in zip(SIZES, spans, strict=True):
        flat[start : start + size].add_(1.0)
        start += span


def wrong(device: str) -> None:
    """Packs end to end."""
    _update(device, quantum=1)


def fixed(device: str) -> None:
    """Starts each parameter on a boundary of 32 bytes."""
    _update(device, quantum=8)
