# SPDX-License-Identifier: BSD-3-Clause
"""The next microbatch is computed into the buffer that isend() is still reading.

Defect: the receiver gets a mixture of two microbatches.
Passes on the CPU: the same if the message is large or the receiver late.
Kind: https://github.com/vllm-project/vllm/pull/54962
"""

import torch
import torch.distributed as dist

HOW = "ranks"


def _program(device: str, wait: bool) -> None:
    if dist.get_rank() == 0:
        activations = torch.empty(1024, device=device)
        last = None
        for microbatch in range(2):
            if wait and last is not None:
                last.wait()
            activations.fill_(microbatch)
            last = dist.isend(activations, dst=1)
        assert last is not None
        last.wait()
    else:
        received = torch.empty(1024, device=device)
        for _ in range(2):
            dist.recv(received, src=0)
            received.sum()


def wrong(device: str) -> None:
    """Fills the buffer while the message before may be under way."""
    _program(device, wait=False)


def fixed(device: str) -> None:
    """Waits for the message before."""
    _program(device, wait=True)
