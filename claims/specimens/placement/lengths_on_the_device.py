# SPDX-License-Identifier: BSD-3-Clause
"""Lengths for a packed sequence come from the batch, so they are on the device.

Defect: `pack_padded_sequence` wants lengths on the CPU, whatever the data is on.
Passes on the CPU: that is where they are.
Kind: https://github.com/facebookresearch/fairseq/pull/3557
"""

import torch
from torch.nn.utils.rnn import pack_padded_sequence


def wrong(device: str) -> None:
    """Passes lengths on the device."""
    batch = {"x": torch.randn(2, 5, 3), "lengths": torch.tensor([5, 3])}
    batch = {name: value.to(device) for name, value in batch.items()}
    pack_padded_sequence(batch["x"], batch["lengths"], batch_first=True)


def fixed(device: str) -> None:
    """Keeps the lengths on the CPU."""
    lengths = torch.tensor([5, 3])
    x = torch.randn(2, 5, 3).to(device)
    pack_padded_sequence(x, lengths, batch_first=True)
