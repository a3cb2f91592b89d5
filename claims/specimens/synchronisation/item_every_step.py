# SPDX-License-Identifier: BSD-3-Clause
"""Every step reads the loss with .item() for the log.

Defect: the host waits for the device at each step instead of running ahead.
Passes on the CPU: there is nobody to wait for.
Kind: https://github.com/deepspeedai/DeepSpeed/pull/5135
"""

from collections.abc import Callable

import torch

CHECK = "sync"


def wrong(device: str) -> Callable[[], object]:
    """Logs numbers."""
    x, log = torch.randn(8, device=device), []
    return lambda: log.append(x.square().mean().item())


def fixed(device: str) -> Callable[[], object]:
    """Keeps the losses on the device until somebody looks at them."""
    x, log = torch.randn(8, device=device), []
    return lambda: log.append(x.square().mean())
