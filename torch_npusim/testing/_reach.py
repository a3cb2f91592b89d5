# SPDX-License-Identifier: BSD-3-Clause
"""Which device memory an object keeps alive: the way forward, from a fixture to its blocks."""

import gc
import types
from typing import Any

import torch

from torch_npusim.testing._graph_owners import GraphOwners, addresses_of
from torch_npusim.testing._referrers import module_of

MOST_OBJECTS = 200_000


def addresses_reached_from(start: Any) -> set[int]:
    """Returns the addresses of the storages that `start` refers to, directly or not.

    Modules and classes are not looked into: they hold everything, and outlive any fixture.
    """
    tensors: list[torch.Tensor] = []
    seen: set[int] = set()
    waiting = [start]
    while waiting and len(seen) < MOST_OBJECTS:
        here = waiting.pop()
        if id(here) in seen or isinstance(here, types.ModuleType | type) or module_of(here):
            continue
        seen.add(id(here))
        if issubclass(type(here), torch.Tensor):
            tensors.append(here)
        waiting += gc.get_referents(here)
    held_by_autograd = GraphOwners(tensors, []).by_address
    return {address for tensor in tensors for address in addresses_of(tensor)} | {*held_by_autograd}
