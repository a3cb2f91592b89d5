# SPDX-License-Identifier: BSD-3-Clause
"""A tensor of one stream is used by another and freed without record_stream().

Defect: its memory is handed out again while the other stream still reads it.
Passes on the CPU: there are no streams. The harness sets the poison mode "freed".
Kind: https://github.com/meta-pytorch/torchrec/pull/4231
"""

import torch

POISON = "freed"


def _program(device: str, record: bool) -> None:
    if device in ("cpu", "meta"):
        landed = torch.ones(64, device=device) * 1
    else:
        side = torch.Stream(device)
        x = torch.ones(64, device=device)
        side.wait_stream(torch.accelerator.current_stream())
        with side:
            landed = x * 1
        if record:
            x.record_stream(side)
        del x
        torch.full((64,), -1.0, device=device)
        torch.accelerator.current_stream().wait_stream(side)
    assert landed.sum() == 64, "the block was reused too early"


def wrong(device: str) -> None:
    """Frees without telling the allocator."""
    _program(device, record=False)


def fixed(device: str) -> None:
    """Records the use."""
    _program(device, record=True)
