# SPDX-License-Identifier: BSD-3-Clause
"""A buffer is used before irecv() has filled it.

Defect: the first layer of the stage computes with what the buffer held before.
Passes on the CPU: the same, and what comes out depends on luck.
Kind: https://github.com/pytorch/pytorch/pull/162749
"""

import torch
import torch.distributed as dist

HOW = "ranks"


def _program(device: str, wait: bool) -> None:
    if dist.get_rank() == 0:
        dist.send(torch.ones(1024, device=device), dst=1)
        return
    received = torch.zeros(1024, device=device)
    work = dist.irecv(received, src=0)
    assert work is not None
    if wait:
        work.wait()
    received * 2
    if not wait:  # with gloo the second wait for a message has no end
        work.wait()


def wrong(device: str) -> None:
    """Computes with the buffer at once."""
    _program(device, wait=False)


def fixed(device: str) -> None:
    """Waits for the message."""
    _program(device, wait=True)
