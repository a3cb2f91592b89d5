# SPDX-License-Identifier: BSD-3-Clause
"""A Function is protected from autocast with custom_fwd(device_type="cuda").

Defect: under another device's autocast its inputs are not cast to float32.
Passes on the CPU: training there does not use autocast.
Kind: https://github.com/NVIDIA/Megatron-LM/pull/7422
"""

from typing import Any

import torch
from torch.autograd import Function


def _square(x: torch.Tensor, protected_type: str) -> torch.Tensor:
    class Square(Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=protected_type, cast_inputs=torch.float32)  # type: ignore[untyped-decorator]
        def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * x

    result: torch.Tensor = Square.apply(x)  # type: ignore[no-untyped-call]
    return result


def _program(device: str, protected_type: str) -> None:
    kind = torch.device(device).type
    accelerated = kind not in ("cpu", "meta")
    x = torch.randn(4, device=device)
    with torch.autocast(kind if accelerated else "cpu", torch.bfloat16, enabled=accelerated):
        if accelerated:
            x = x.bfloat16()
        y = _square(x, protected_type)
    assert y.dtype is torch.float32, f"computed in {y.dtype}"


def wrong(device: str) -> None:
    """Protects from CUDA's autocast."""
    _program(device, "cuda")


def fixed(device: str) -> None:
    """Protects from that of the device in use."""
    kind = torch.device(device).type
    _program(device, "cuda" if kind in ("cpu", "meta") else kind)
