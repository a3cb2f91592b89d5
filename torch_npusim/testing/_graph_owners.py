# SPDX-License-Identifier: BSD-3-Clause
"""Tensors that autograd holds: tensors that C++ owns, which Python's garbage collector cannot see.

Starting at every tensor that has a graph, the graph is walked and each tensor it keeps is noted
with the node that keeps it and the tensor whose graph it is.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from torch_npusim._names import is_npusim
from torch_npusim.testing._words import thing

MOST_NODES = 50_000  # of all graphs together; a report is not worth more


class GraphOwners:
    """Holdings of the graphs of some tensors, by address of the storage and by id of the node.

    The values are (place in `alive` of the tensor whose graph it is, how in words): places rather
    than objects, so that `alive` is the only container in which a search meets itself.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], alive: list[Any]) -> None:
        self.by_address: dict[int, tuple[int, str]] = {}
        self.by_node: dict[int, tuple[int, str]] = {}
        self._alive = alive
        # A graph contains those of the tensors before it, and autograd keeps the Python object of a
        # tensor that it has saved: the owner of a graph is the tensor that no other graph contains.
        inner = _inner_nodes(tensors)
        for tensor in sorted(tensors, key=lambda tensor: id(tensor.grad_fn) in inner):
            place = len(alive)
            alive.append(tensor)
            self._note_gradient(tensor, place)
            if tensor.grad_fn is not None:
                self._walk(place, tensor.grad_fn)

    def _note_gradient(self, tensor: torch.Tensor, place: int) -> None:
        # Asking a tensor that is not a leaf for its gradient warns.
        gradient = tensor.grad if tensor.is_leaf or tensor.retains_grad else None
        if gradient is not None:
            for address in addresses_of(gradient):
                self.by_address.setdefault(address, (place, f"gradient of {thing(tensor)}"))

    def _walk(self, place: int, first: Any) -> None:
        graph = f"in the autograd graph of {thing(self._alive[place])}"
        waiting = [first]
        while waiting and len(self.by_node) < MOST_NODES:
            node = waiting.pop()
            if node is None or id(node) in self.by_node:
                continue
            self._alive.append(node)  # hooks can be seen by the collector while it lives
            self.by_node[id(node)] = (place, f"node {node.name()} {graph}")
            for name, tensor in _kept_by(node):
                how = f"saved for backward as {name!r} by {node.name()}, {graph}"
                for address in addresses_of(tensor):
                    self.by_address.setdefault(address, (place, how))
            waiting += [following for following, _ in node.next_functions]


def _inner_nodes(tensors: Sequence[torch.Tensor]) -> set[int]:
    """Returns the ids of the nodes that another node leads to; true while the graphs live."""
    waiting = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    nodes = {id(node): node for node in waiting}  # while they live, ids stay true
    inner = set()
    while waiting and len(nodes) < MOST_NODES:
        for following, _ in waiting.pop().next_functions:
            if following is None:
                continue
            inner.add(id(following))
            if id(following) not in nodes:
                nodes[id(following)] = following
                waiting.append(following)
    return inner


def _kept_by(node: Any) -> Iterator[tuple[str, torch.Tensor]]:
    for attribute in _names_of_tensors(node.__class__):
        try:
            value = getattr(node, attribute)
        except RuntimeError:  # backward() has freed it
            continue
        for tensor in _tensors_in(value):
            yield attribute.removeprefix("_saved_"), tensor


@cache
def _names_of_tensors(kind: type) -> list[str]:
    names = [name for name in dir(kind) if name.startswith("_saved_")]
    return names + [name for name in ("saved_tensors", "variable") if hasattr(kind, name)]


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors_in(item)


def addresses_of(tensor: torch.Tensor) -> list[int]:
    """Returns the addresses of the blocks that a tensor on npusim occupies; none for any other."""
    try:
        if not is_npusim(tensor.device) or isinstance(tensor, FakeTensor):
            return []
        return [part.untyped_storage().data_ptr() for part in _parts(tensor)]
    except Exception:  # wrapped or fake, or of a class whose operators raise what they like
        return []


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    if tensor.layout == torch.strided:
        return [tensor]
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return []
