# SPDX-License-Identifier: BSD-3-Clause
"""The oracle for an operator is the CPU backend, bit for bit (rule O1).

`compare(fn, *inputs)` runs `fn` on the CPU and on npusim and asserts that both give the same.
Inputs reach the device with their strides, offsets, conj and neg bits and shared storages; of a
module there is a copy, whose parameters count as inputs.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

DEVICE = "npusim"


class Mover:
    """Moves tensors to a device as they are; tensors that share a storage share it there too."""

    def __init__(self, device: str = DEVICE) -> None:
        self.device = torch.device(device)
        self._storages: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def __call__(self, tree: Any) -> Any:
        return pytree.tree_map(self._move, tree)

    def _move(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.device) or leaf == "cpu":
            return self.device
        if isinstance(leaf, torch.nn.Module):
            return copy.deepcopy(leaf).to(self.device)
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if leaf.layout != torch.strided or leaf.is_quantized or leaf.is_nested:
            moved = leaf.detach().to(self.device)
        else:
            moved = self._strided(leaf.detach())
        return moved.requires_grad_(leaf.requires_grad)

    def _strided(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_conj():
            return self._strided(tensor.conj()).conj()
        if tensor.is_neg():
            return self._strided(torch._neg_view(tensor))._neg_view()
        storage = tensor.untyped_storage()
        if storage._cdata not in self._storages:  # the storage is kept, so its number stays its own
            whole = torch.empty(0, dtype=torch.uint8).set_(storage)
            self._storages[storage._cdata] = (storage, whole.to(self.device).untyped_storage())
        moved = torch.empty(0, dtype=tensor.dtype, device=self.device)
        return moved.set_(
            self._storages[storage._cdata][1],
            tensor.storage_offset(),
            tensor.shape,
            tensor.stride(),
        )


def reseed(seed: int) -> None:
    """torch.manual_seed() for the two devices; torch's own also notes the stack for all others."""
    torch.default_generator.manual_seed(seed)
    torch.npusim.manual_seed_all(seed)


def tensors_of(tree: Any) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(tree)
    modules = [leaf for leaf in leaves if isinstance(leaf, torch.nn.Module)]
    own = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)] + own


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of the elements in row-major order, on the CPU."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    return plain.flatten().clone(memory_format=torch.contiguous_format).view(torch.uint8)


def assert_same(expected: Any, got: Any, what: str = "result") -> None:
    """Asserts equal structure, dtypes, shapes, strides and bits; `got` must lie on the device."""
    expected_leaves, expected_tree = pytree.tree_flatten(expected)
    got_leaves, got_tree = pytree.tree_flatten(got)
    assert got_tree == expected_tree, what
    for number, (one, other) in enumerate(zip(expected_leaves, got_leaves, strict=True)):
        name = f"{what} {number}" if len(expected_leaves) > 1 else what
        if isinstance(one, torch.Tensor):
            _assert_same_tensor(one, other, name)
        elif not isinstance(one, torch.device):
            assert other == one or (other != other and one != one), name


def _assert_same_tensor(one: torch.Tensor, other: torch.Tensor, name: str) -> None:
    assert other.device.type == DEVICE, name
    assert other.is_nested == one.is_nested, name
    if one.is_nested and one.layout == torch.strided:
        assert other.dtype == one.dtype, name
        _assert_same_nested(one.detach(), other.detach(), name)
        return
    assert (other.dtype, other.shape, other.layout) == (one.dtype, one.shape, one.layout), name
    if one.layout == torch.sparse_coo:
        assert other.is_coalesced() == one.is_coalesced(), name
    if one.layout != torch.strided:
        assert_same(_members(one), _members(other), name)
        return
    if one.is_quantized:
        assert other.qscheme() == one.qscheme(), name
        assert_same(_parameters(one), _parameters(other), name)
        one, other = one.int_repr(), other.int_repr()
    assert other.stride() == one.stride(), name
    if not torch.equal(bits(one), bits(other)):
        torch.testing.assert_close(other.detach().cpu(), one.detach(), rtol=0, atol=0, msg=None)
        raise AssertionError(f"{name}: equal values, but not equal bits (signs of zeros or NaNs)")


def _assert_same_nested(one: torch.Tensor, other: torch.Tensor, name: str) -> None:
    """Sizes, strides and offsets are tensors of the host wherever the nested tensor lies."""
    for member in (
        torch.Tensor._nested_tensor_size,
        torch.Tensor._nested_tensor_strides,
        torch.Tensor._nested_tensor_storage_offsets,
    ):
        assert member(other).device.type == "cpu", name
        assert torch.equal(member(other), member(one)), name
    assert_same(one.unbind(), other.unbind(), name)


def _parameters(quantized: torch.Tensor) -> list[Any]:
    if quantized.qscheme() == torch.per_tensor_affine:
        return [quantized.q_scale(), quantized.q_zero_point()]
    scales, zero_points = quantized.q_per_channel_scales(), quantized.q_per_channel_zero_points()
    return [quantized.q_per_channel_axis(), scales, zero_points]


def _members(sparse: torch.Tensor) -> list[torch.Tensor]:
    sparse = sparse.detach()
    if sparse.layout == torch.sparse_coo:
        return [sparse._indices(), sparse._values()]
    if sparse.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [sparse.crow_indices(), sparse.col_indices(), sparse.values()]
    return [sparse.ccol_indices(), sparse.row_indices(), sparse.values()]


def _dense_of(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_nested:
        return torch.nested.to_padded_tensor(tensor, 0.0)
    return tensor if tensor.layout == torch.strided else tensor.to_dense()


def _loss_of(result: Any) -> torch.Tensor | None:
    """A scalar that depends on every differentiable result, the same way on each device."""
    parts = [tensor for tensor in tensors_of(result) if tensor.requires_grad]
    if not parts:
        return None
    dense = [_dense_of(part) for part in parts]
    return torch.stack([(part.abs() if part.is_complex() else part).sum() for part in dense]).sum()


def compare(
    fn: Callable[..., Any], *inputs: Any, backward: bool = False, seed: int = 0, **kwargs: Any
) -> Any:
    """Runs fn(*inputs, **kwargs) on both devices; returns the result on npusim.

    Asserts equal results and equal inputs afterwards (for operators that write to them), with
    `backward` also equal gradients of every input that requires them.
    """
    mover = Mover()
    device_inputs, device_kwargs = mover(inputs), mover(kwargs)
    runs = []
    for arguments, named in ((inputs, kwargs), (device_inputs, device_kwargs)):
        reseed(seed)
        result = fn(*arguments, **named)
        loss = _loss_of(result) if backward else None
        if loss is not None:
            loss.backward()
        runs.append((result, tensors_of((arguments, named))))
    (expected, host_inputs), (got, moved_inputs) = runs
    assert_same(expected, got)
    assert_same(host_inputs, moved_inputs, "input")
    if backward:
        # A sample may be the result of an operation, which keeps no gradient; its copy is a leaf.
        leaves = [number for number, tensor in enumerate(host_inputs) if tensor.is_leaf]
        host_gradients = [host_inputs[number].grad for number in leaves]
        assert_same(host_gradients, [moved_inputs[number].grad for number in leaves], "gradient")
        for number in leaves:
            host_inputs[number].grad = None
    return got


def refused(fn: Callable[..., Any], *inputs: Any, match: str | None = None) -> None:
    """Asserts that fn(*inputs) raises on both devices: the same class, with the same text."""
    told = []
    for arguments in (inputs, Mover()(inputs)):
        with pytest.raises(Exception, match=match) as caught:
            fn(*arguments)
        told.append((caught.type, str(caught.value)))
    assert told[0] == told[1]
