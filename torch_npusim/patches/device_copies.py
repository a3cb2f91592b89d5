# SPDX-License-Identifier: BSD-3-Clause
"""Copies to and from several devices, which builds of torch for CUDA have in C++.

nn.DataParallel and torch.nn.parallel.comm are made of them; table.py has the row.
Devices are indexes; -1 is the CPU.
"""

from collections.abc import Sequence

import torch

from torch_npusim import npusim


def _on(index: int) -> torch.device:
    return torch.device("npusim", index) if index >= 0 else torch.device("cpu")


def _broadcast(tensor: torch.Tensor, devices: Sequence[int]) -> list[torch.Tensor]:
    return [tensor.to(_on(index)) for index in devices]


def _broadcast_out(tensor: torch.Tensor, out: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
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
    parts = torch.split(tensor, [one.size(dim) for one in out], dim)
    for part, one in zip(parts, out, strict=True):
        one.copy_(part)
    return out


def _check_some(tensors: Sequence[torch.Tensor]) -> None:
    if not tensors:
        raise RuntimeError("Expected at least one tensor to gather from")


def _gather(tensors: Sequence[torch.Tensor], dim: int, destination: int) -> torch.Tensor:
    _check_some(tensors)
    return torch.cat([tensor.to(_on(destination)) for tensor in tensors], dim)


def _gather_out(tensors: Sequence[torch.Tensor], out: torch.Tensor, dim: int) -> torch.Tensor:
    _check_some(tensors)
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
