# SPDX-License-Identifier: BSD-3-Clause
"""Calls that several lists make."""

import torch

from torch_npusim.testing import allow_sync


def x(*shape, **options):
    return torch.ones(*(shape or (4, 4)), device="cuda", **options)


def waits(call):
    """Allows a wait that CUDA needs too, for the success of a decomposition or lengths."""
    with allow_sync():
        return call()


def check(tensor):
    with allow_sync():
        assert bool(tensor)
