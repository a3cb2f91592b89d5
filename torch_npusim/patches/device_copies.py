# SPDX-License-Identifier: BSD-3-Clause
"""Copies to and from several devices, which builds of torch for CUDA have in C++.

nn.DataParallel and torch.nn.parallel.comm are made of them; table.py has the row.
Devices are indexes; -1 is the CPU.
"""

from collections.abc import Sequence

import torch

from torch_npusim import npusim
from torch_npusim._names import device_type, is_npusim


def _on(index: int) -> torch.device:
    return torch.device("npusim", index) if index >= 0 else torch.device("cpu")


def _broadcast(tensor: torch.Tensor, devices: Sequence[int]) -> list[torch.Tensor]:
    return [tensor.to(_on(index)) for index in devices]


def _check(what: str, index: int, met: bool, otherwise: str) -> None:
    if not met:
        raise RuntimeError(f"{what} at index {index} {otherwise}")


def _check_devices(kind: str, what: str, tensors: Sequence[torch.Tensor]) -> None:
    device = "CUDA" if device_type() == "cuda" else device_type()
    expected = f"Expected all {kind} tensors to be {device} tensors, but {what}"
    for index, tensor in enumerate(tensors):
        _check(expected, index, is_npusim(tensor.device), f"is on device '{tensor.device}'")


def _broadcast_out(tensor: torch.Tensor, out: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    _check_devices("output", "output tensor", out)
    expected = (
        f"Expected all output tensors to have same shape as the source tensor "
        f"{list(tensor.shape)}, but output tensor"
    )
    for index, one in enumerate(out):
        _check(expected, index, one.shape == tensor.shape, f"has shape {list(one.shape)}")
    return tuple(one.copy_(tensor) for one in out)


def _broadcast_coalesced(
    tensors: Sequence[torch.Tensor], devices: Sequence[int], buffer_size: int
) -> list[list[torch.Tensor]]:
    return [[tensor.to(_on(index)) for tensor in tensors] for index in devices]


def _scatter(
    tensor: torch.Tensor,
    devices: Sequence[int],
    chunk_sizes: Sequence[int] | None,
    dim: int,
    streams: Sequence[torch.Stream | None] | None,
) -> list[torch.Tensor]:
    if not devices:
        raise RuntimeError("Expected at least one device to scatter to")
    if chunk_sizes is not None and len(chunk_sizes) != len(devices):
        raise RuntimeError(
            f"Expected devices and chunk_sizes to be of same length, but got len(devices) = "
            f"{len(devices)} and len(chunk_sizes) = {len(chunk_sizes)}"
        )
    parts = (
        tensor.chunk(len(devices), dim)
        if chunk_sizes is None
        else torch.split(tensor, list(chunk_sizes), dim)
    )
    copies = []
    for position, (part, index) in enumerate(zip(parts, devices, strict=False)):
        with npusim.stream(streams[position] if streams is not None else None):
            copies.append(part.to(_on(index), non_blocking=True))
    return copies


def _scatter_out(
    tensor: torch.Tensor,
    out: Sequence[torch.Tensor],
    dim: int,
    streams: Sequence[torch.Stream | None] | None,
) -> Sequence[torch.Tensor]:
    if not out:
        raise RuntimeError("Expected at least one output tensor to scatter to")
    _check_devices("output", "output tensor", out)
    tensor.size(dim)  # raises torch's error for no such dimension
    dim %= tensor.dim()
    for index, one in enumerate(out):
        expected = list(tensor.shape)
        if one.dim() == tensor.dim():
            expected[dim] = one.size(dim)
        otherwise = f"has incorrect shape: {list(one.shape)}. Expected {expected} but for dim {dim}"
        _check("Output tensor", index, list(one.shape) == expected, otherwise)
    total = sum(one.size(dim) for one in out)
    if total != tensor.size(dim):
        raise RuntimeError(
            f"Total size for output tensors along scatter dim {dim} does not match the source "
            f"tensor size at dim {dim}. Expected {tensor.size(dim)}, but got total size {total}"
        )
    parts = torch.split(tensor, [one.size(dim) for one in out], dim)
    for part, one in zip(parts, out, strict=True):
        one.copy_(part)
    return out


def _check_inputs(tensors: Sequence[torch.Tensor], dim: int) -> None:
    if not tensors:
        raise RuntimeError("Expected at least one tensor to gather from")
    _check_devices("input", "tensor", tensors)
    first = tensors[0]
    if first.dim() == 0:
        return
    first.size(dim)  # raises torch's error for no such dimension
    for index, tensor in enumerate(tensors):
        _check(
            "Expected all input tensors to have the same number of dimensions, but tensor",
            index,
            tensor.dim() == first.dim(),
            f"has {tensor.dim()} dimensions, (expected {first.dim()})",
        )
        expected = list(first.shape)
        expected[dim] = tensor.size(dim)
        otherwise = f"has invalid shape {list(tensor.shape)}, but expected {expected}"
        _check("Input tensor", index, list(tensor.shape) == expected, otherwise)


def _gather(tensors: Sequence[torch.Tensor], dim: int, destination: int) -> torch.Tensor:
    _check_inputs(tensors, dim)
    return torch.cat([tensor.to(_on(destination)) for tensor in tensors], dim)


def _gather_out(tensors: Sequence[torch.Tensor], out: torch.Tensor, dim: int) -> torch.Tensor:
    _check_inputs(tensors, dim)
    return torch.cat([tensor.to(out.device) for tensor in tensors], dim, out=out)


FUNCTIONS = (
    _broadcast,
    _broadcast_coalesced,
    _broadcast_out,
    _gather,
    _gather_out,
    _scatter,
    _scatter_out,
)
