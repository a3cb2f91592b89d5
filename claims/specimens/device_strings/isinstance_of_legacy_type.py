# SPDX-License-Identifier: BSD-3-Clause
"""An argument is checked with isinstance(mask, torch.BoolTensor).

Defect: legacy tensor types stand for one device each, so the check refuses right arguments.
Passes on the CPU: BoolTensor is the CPU's bool tensor.
Kind: https://github.com/tommasocarraro/LTNtorch/issues/2
"""

import torch


def wrong(device: str) -> None:
    """Asks for the CPU's tensor type."""
    mask = torch.ones(3, dtype=torch.bool, device=device)
    if not isinstance(mask, torch.BoolTensor):
        raise TypeError(f"mask must be boolean, got {mask.type()}")


def fixed(device: str) -> None:
    """Asks for the dtype."""
    mask = torch.ones(3, dtype=torch.bool, device=device)
    if mask.dtype is not torch.bool:
        raise TypeError(f"mask must be boolean, got {mask.dtype}")
