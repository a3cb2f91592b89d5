# SPDX-License-Identifier: BSD-3-Clause
"""All ranks seed their device with the same number.

Defect: every rank drops the same elements, so the noise does not average out.
Passes on the CPU: nobody says anything.
Kind: https://github.com/huggingface/transformers/issues/31412
"""

import torch
import torch.distributed as dist
from torch import nn

HOW = "ranks"
MISSED = "equal seeds are right for parameters and wrong for dropout: only the program knows"


def _program(device: str, seed: int) -> None:
    generator = torch.Generator(device).manual_seed(seed)
    mask = torch.rand(64, generator=generator, device=device) < 0.5
    nn.functional.linear(mask.float(), torch.ones(1, 64, device=device))


def wrong(device: str) -> None:
    """Uses the seed as it is."""
    _program(device, 17)


def fixed(device: str) -> None:
    """Adds the rank."""
    _program(device, 17 + dist.get_rank())
