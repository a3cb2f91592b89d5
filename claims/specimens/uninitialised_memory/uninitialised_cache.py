# SPDX-License-Identifier: BSD-3-Clause
"""A cache is made with torch.empty and read before all of it is written.

Defect: a caching allocator hands out old contents. The harness sets the poison mode "fresh".
Passes on the CPU: a block of this size is fresh from the system and reads as zero.
Kind: https://github.com/vllm-project/vllm/issues/940
"""

import torch

POISON = "fresh"
SIZE = 40 << 20  # above the largest size that glibc keeps for reuse


def wrong(device: str) -> None:
    """Trusts that memory is zero."""
    cache = torch.empty(SIZE, dtype=torch.uint8, device=device)
    cache[:2] = 1
    assert cache[:8].sum() == 2, "the rest of the cache is not zero"


def fixed(device: str) -> None:
    """Asks for zeros."""
    cache = torch.zeros(SIZE, dtype=torch.uint8, device=device)
    cache[:2] = 1
    assert cache[:8].sum() == 2, "the rest of the cache is not zero"
