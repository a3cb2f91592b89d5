# SPDX-License-Identifier: BSD-3-Clause
"""A side stream fills a tensor that the default stream reads without waiting.

Defect: nothing orders the two.
Passes on the CPU: there are no streams.
Kind: https://github.com/ROCm/pytorch/issues/3194
"""

import torch


def _program(device: str, wait: bool) -> None:
    x = torch.zeros(64, device=device)
    if device in ("cpu", "meta"):
        x.fill_(1.0)
    else:
        side = torch.Stream(device)
        side.wait_stream(torch.accelerator.current_stream())
        with side:
            x.fill_(1.0)
        if wait:
            torch.accelerator.current_stream().wait_stream(side)
    assert x.sum() == 64, "read before it was written"


def wrong(device: str) -> None:
    """Reads without waiting."""
    _program(device, wait=False)


def fixed(device: str) -> None:
    """Lets the reader's stream wait."""
    _program(device, wait=True)
