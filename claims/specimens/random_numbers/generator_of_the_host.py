# SPDX-License-Identifier: BSD-3-Clause
"""Noise is drawn on the device with a generator of the CPU.

Defect: a generator belongs to a device.
Passes on the CPU: it is the right one.
Kind: https://github.com/huggingface/diffusers/pull/13228
"""

import torch


def wrong(device: str) -> None:
    """Passes a seeded generator of the CPU."""
    generator = torch.Generator().manual_seed(0)
    torch.randn(4, device=device, generator=generator)


def fixed(device: str) -> None:
    """Draws on the generator's device and moves the noise."""
    generator = torch.Generator().manual_seed(0)
    torch.randn(4, device=generator.device, generator=generator).to(device)
