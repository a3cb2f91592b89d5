# SPDX-License-Identifier: BSD-3-Clause
"""Copies tensors from the CPU to a device exactly as they lie.

Strides, storage offsets, shared storages, conj and neg bits and requires_grad are kept, so that
sample number n is the same input on every device.
"""

from collections import Counter
from typing import Any

import torch
from torch.utils import _pytree as pytree


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """Every tensor in nested containers, in order."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


class Transfer:
    """Callable that copies trees of tensors to `device`; also from the CPU to the CPU.

    One object per sample: tensors that share a storage in one call or several share one there.
    """

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self._storages: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def __call__(self, tree: Any) -> Any:
        """`tree` with its tensors copied, and devices that name the CPU renamed."""
        leaves, structure = pytree.tree_flatten(tree)
        uses = Counter(
            leaf.untyped_storage()._cdata
            for leaf in leaves
            if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided
        )
        moved = [self._leaf(leaf, uses) for leaf in leaves]
        return pytree.tree_unflatten(moved, structure)

    def _leaf(self, leaf: Any, uses: Counter[int]) -> Any:
        if not isinstance(leaf, torch.Tensor):
            if isinstance(leaf, str):
                return self.device if leaf == "cpu" else leaf
            is_cpu = isinstance(leaf, torch.device) and leaf.type == "cpu"
            return self.device if is_cpu else leaf
        plain = leaf.detach()
        if leaf.layout != torch.strided or leaf.is_quantized or leaf.is_nested:
            moved = plain.to(self.device, copy=True)
        else:
            moved = self._strided(plain, uses)
        return moved.requires_grad_() if leaf.requires_grad else moved

    def _strided(self, tensor: torch.Tensor, uses: Counter[int]) -> torch.Tensor:
        if tensor.is_conj():
            return self._strided(tensor.conj(), uses).conj()
        if tensor.is_neg():
            return torch._neg_view(self._strided(torch._neg_view(tensor), uses))
        storage = tensor.untyped_storage()
        alone = uses[storage._cdata] == 1 and storage._cdata not in self._storages
        if alone and tensor.nbytes == storage.nbytes() and tensor.is_contiguous():
            moved = torch.empty(tensor.shape, dtype=tensor.dtype, device=self.device)
            return moved.copy_(tensor)
        if storage._cdata not in self._storages:  # the storage is kept, so its number stays its own
            whole = torch.empty(0, dtype=torch.uint8).set_(storage)
            copy = torch.empty(whole.shape, dtype=torch.uint8, device=self.device).copy_(whole)
            self._storages[storage._cdata] = (storage, copy.untyped_storage())
        empty = torch.empty(0, dtype=tensor.dtype, device=self.device)
        return empty.set_(
            self._storages[storage._cdata][1],
            tensor.storage_offset(),
            tensor.shape,
            tensor.stride(),
        )
