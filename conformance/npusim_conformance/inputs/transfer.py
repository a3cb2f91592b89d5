# SPDX-License-Identifier: BSD-3-Clause
"""Copies tensors from the CPU to a device exactly as they lie.

Strides, storage offsets, shared storages, conj and neg bits and requires_grad are kept, so that
sample number n is the same input on every device.
"""

from collections import Counter
from contextlib import suppress
from typing import Any

import torch
from torch.utils import _pytree as pytree

_PLAIN = (int, float, bool, complex, type(None), torch.dtype, torch.layout, torch.memory_format)


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """Every tensor in nested containers, in order."""
    tensors: list[torch.Tensor] = []
    _gather(tree, tensors)
    return tensors


def _gather(tree: Any, tensors: list[torch.Tensor]) -> None:
    if isinstance(tree, torch.Tensor):
        tensors.append(tree)
        return
    kind = type(tree)
    if kind is tuple or kind is list:
        for item in tree:
            _gather(item, tensors)
    elif kind is dict:
        for item in tree.values():
            _gather(item, tensors)
    elif kind not in _PLAIN and kind is not str and not pytree.tree_is_leaf(tree):
        _gather(pytree.tree_leaves(tree), tensors)


class Transfer:
    """Callable that copies trees of tensors to `device`; also from the CPU to the CPU.

    One object per sample: tensors that share a storage in one call or several share one there.
    """

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self._storages: dict[int, tuple[torch.UntypedStorage, torch.Tensor]] = {}
        self._memories: dict[int, torch.Tensor] = {}  # where there is no set_()
        self._shared: set[int] = set()

    def __call__(self, tree: Any) -> Any:
        """`tree` with its tensors copied, and devices that name the CPU renamed."""
        tensors: list[torch.Tensor] = []
        _gather(tree, tensors)
        if len(tensors) > 1:
            shared = Counter(
                tensor.untyped_storage()._cdata
                for tensor in tensors
                if tensor.layout == torch.strided
            )
            self._shared.update(storage for storage, uses in shared.items() if uses > 1)
        return self._tree(tree)

    def _tree(self, tree: Any) -> Any:
        """pytree's tree_map, at a third of its cost for what samples are made of."""
        if isinstance(tree, torch.Tensor):
            return self._tensor(tree)
        kind = type(tree)
        if kind is tuple:
            return tuple([self._tree(item) for item in tree])
        if kind is list:
            return [self._tree(item) for item in tree]
        if kind is dict:
            return {key: self._tree(item) for key, item in tree.items()}
        if kind in _PLAIN:
            return tree
        if kind is str or kind is torch.device:
            return self.device if str(tree) == "cpu" else tree
        if not pytree.tree_is_leaf(tree):  # named tuples and the like
            return pytree.tree_map(self._tree, tree)
        return tree

    def _tensor(self, leaf: torch.Tensor) -> torch.Tensor:
        plain = leaf.detach()
        if leaf.layout != torch.strided or leaf.is_quantized or leaf.is_nested:
            moved = plain.to(self.device, copy=True)
        else:
            moved = self._strided(plain)
        return moved.requires_grad_() if leaf.requires_grad else moved

    def _strided(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_conj():
            return self._strided(tensor.conj()).conj()
        if tensor.is_neg():
            return torch._neg_view(self._strided(torch._neg_view(tensor)))
        storage = tensor.untyped_storage()
        known = storage._cdata in self._shared or storage._cdata in self._storages
        if not known and tensor.nbytes == storage.nbytes() and tensor.is_contiguous():
            moved = torch.empty(tensor.shape, dtype=tensor.dtype, device=self.device)
            return moved.copy_(tensor)
        if storage._cdata not in self._storages:  # the storage is kept, so its number stays its own
            whole = torch.empty(0, dtype=torch.uint8).set_(storage)
            copy = torch.empty(whole.shape, dtype=torch.uint8, device=self.device).copy_(whole)
            self._storages[storage._cdata] = (storage, copy)
        memory = self._storages[storage._cdata][1]
        offset, shape, stride = tensor.storage_offset(), tensor.shape, tensor.stride()
        empty = torch.empty(0, dtype=tensor.dtype, device=self.device)
        # set_() is optional, and no operator is blamed for a wrong one: a view serves as well.
        with suppress(NotImplementedError):
            moved = empty.set_(memory.untyped_storage(), offset, shape, stride)
            if (moved.storage_offset(), moved.shape, moved.stride()) == (offset, shape, stride):
                return moved
        return self._typed(tensor).as_strided(shape, stride, offset)

    def _typed(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor's whole memory in its dtype; in another only where two dtypes share it.

        A backend without storages may lose the dtype of a view that is made from another dtype's.
        """
        storage = tensor.untyped_storage()
        if storage._cdata not in self._memories:
            whole = torch.empty(0, dtype=tensor.dtype).set_(storage)
            copy = torch.empty(whole.shape, dtype=tensor.dtype, device=self.device).copy_(whole)
            self._memories[storage._cdata] = copy
        memory = self._memories[storage._cdata]
        if memory.dtype == tensor.dtype:
            return memory
        whole_bytes = memory.nbytes - memory.nbytes % tensor.itemsize
        return memory[: whole_bytes // memory.itemsize].view(tensor.dtype)
