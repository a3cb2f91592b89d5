# SPDX-License-Identifier: BSD-3-Clause
"""functools.lru_cache decorates a method of an object that owns tensors.

Defect: the cache belongs to the class and keeps every `self`, so models never go.
Passes on the CPU: results are right, memory grows unseen.
Kind: https://github.com/facebookresearch/ParlAI/pull/2487
"""

import functools
from collections.abc import Callable

import torch

CHECK = "leak"


class _Cached:
    def __init__(self, device: str) -> None:
        self.table = torch.randn(256, device=device)

    @functools.lru_cache(maxsize=64)  # noqa: B019 (the exhibit)
    def size(self) -> int:
        return self.table.numel()


class _Kept:
    def __init__(self, device: str) -> None:
        self.table = torch.randn(256, device=device)

    @functools.cached_property
    def size(self) -> int:
        return self.table.numel()


def wrong(device: str) -> Callable[[], object]:
    """Caches in the class."""
    return lambda: _Cached(device).size()


def fixed(device: str) -> Callable[[], object]:
    """Caches in the object."""
    return lambda: _Kept(device).size
