# SPDX-License-Identifier: BSD-3-Clause
"""Defects for any backend, each made for a contract that no other planted defect needs."""

import io
from typing import Any

import torch
from torch import Tensor

from .planting import Stand, interface, kernel, replace, vector

_kept: list[Any] = []


def _allocated(d: str) -> int:
    return torch.accelerator.memory_allocated(torch.device(d, 0))


@interface(touches="contract:autograd", shows=lambda d: _seen_in_hook(torch.device(d, 1)))
def hooks_run_on_the_first_device() -> None:
    """In a hook of a tensor the first device is current, whichever the gradient is on."""
    right = torch.Tensor.register_hook

    def register_hook(self: Tensor, hook: Any) -> Any:
        def called(grad: Tensor) -> Any:
            with torch.accelerator.device_index(0):
                return hook(grad)

        return right(self, hook if self.is_cpu else called)

    torch.Tensor.register_hook = register_hook


def _seen_in_hook(device: torch.device) -> list[int]:
    seen: list[int] = []
    leaf = torch.ones(2).to(device).requires_grad_()
    leaf.register_hook(lambda grad: seen.append(torch.accelerator.current_device_index()))
    (leaf * 2).sum().backward()
    return seen


@interface(
    touches="contract:memory",
    shows=lambda d: (
        x := torch.empty(1 << 20, device=d),
        setattr(x, "data", torch.empty(0, device=d)),
        _allocated(d),
    )[-1],
)
def old_data_stays() -> None:
    """The storage of before `tensor.data = other` stays allocated."""
    right = torch._C.TensorBase.data

    def set_data(self: Tensor, data: Tensor) -> None:
        if not self.is_cpu:
            _kept.append(right.__get__(self))
        right.__set__(self, data)

    torch.Tensor.data = property(right.__get__, set_data)


@kernel(
    "resize_",
    touches="contract:memory",
    shows=lambda d: (torch.empty(1 << 20, device=d).resize_(1 << 21).numel(), _allocated(d)),
)
def resizing_keeps_what_was(own: Stand, x: Tensor, *given: Any, **named: Any) -> Tensor:
    """Memory that resize_() replaces by more stays allocated."""
    before = x.untyped_storage().nbytes()
    own(x, *given, **named)
    if before and x.untyped_storage().nbytes() > before:
        _kept.append(torch.empty(before, dtype=torch.uint8, device=x.device))
    return x


@interface(touches="contract:rng", shows=lambda d: str(torch.Generator(f"{d}:1").device))
def generators_say_the_first_device() -> None:
    """Generator.device of any device is the first."""
    right = torch.Generator.__dict__["device"]

    def device(self: torch.Generator) -> torch.device:
        found = right.__get__(self)
        return found if found.type == "cpu" else torch.device(found.type, 0)

    replace(torch.Generator, "device", property(device))


@interface(
    touches="contract:serialization",
    shows=lambda d: _loaded(torch.tensor([1 + 2j]).to(d).conj()).cpu().resolve_conj(),
)
def files_have_no_bits() -> None:
    """torch.load() of a conj view gives the values that it is a view of."""
    right = torch._utils.set_tensor_metadata

    def set_tensor_metadata(tensor: Tensor, metadata: Any) -> None:
        if tensor.is_cpu:
            right(tensor, metadata)

    torch._utils.set_tensor_metadata = set_tensor_metadata


def _loaded(thing: Any) -> Any:
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file)


@kernel(
    "sub.out",
    touches="contract:storage",
    shows=lambda d: (x := vector(d, 1.0), torch.sub(vector(d, 5.0), x, out=x).cpu())[-1],
)
def results_begin_with_the_first(
    own: Stand, x: Tensor, y: Tensor, *, out: Tensor, **named: Any
) -> Tensor:
    """sub() copies its first operand into out= before it reads the second."""
    if y.dim() and not y.is_cpu and out.data_ptr() == y.data_ptr() and out.shape == x.shape:
        out.copy_(x)
        y = out
    return own(x, y, out=out, **named)
