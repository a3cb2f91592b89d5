# SPDX-License-Identifier: BSD-3-Clause
"""Defects that the kit missed at first, of 25 that another hand had planted in a backend's C++.

Ports to any backend. The 25 were written without a look at the kit.
"""

from typing import Any

import torch
from torch import Tensor

from .planting import Stand, grid, interface, kernel, replace, vector


@interface(
    touches=("contract:stream", "contract:accelerator"),
    shows=lambda d: (
        torch.accelerator.current_device_index(),
        torch.accelerator.set_stream(torch.Stream(f"{d}:1")),
        torch.accelerator.current_stream(0) == torch.get_device_module(d).default_stream(0),
    )[-1],
)
def all_devices_change_their_stream() -> None:
    """set_stream() of one device makes another stream current on the others, too."""
    right = torch.accelerator.set_stream

    def set_stream(stream: Any) -> None:
        index = torch.accelerator.current_device_index()
        for other in range(torch.accelerator.device_count()):
            if other != stream.device.index:
                right(torch.Stream(torch.device(stream.device.type, other)))
        torch.accelerator.set_device_index(index)
        right(stream)

    torch.accelerator.set_stream = set_stream


@interface(
    touches=("contract:device", "contract:memory"),
    shows=lambda d: (_too_much(f"{d}:1"), torch.accelerator.current_device_index())[-1],
)
def out_of_memory_keeps_the_device() -> None:
    """An allocation that fails on another device leaves that device current."""
    right = torch.empty

    def empty(*sizes: Any, **named: Any) -> Tensor:
        try:
            return right(*sizes, **named)
        except RuntimeError:
            where = torch.device(named.get("device") or "cpu")
            if where.type != "cpu" and where.index is not None:
                torch.accelerator.set_device_index(where.index)
            raise

    torch.empty = empty


def _too_much(device: str) -> None:
    try:
        torch.empty(1 << 50, dtype=torch.uint8, device=device)
    except RuntimeError:
        pass


@interface(
    touches="contract:copy", shows=lambda d: torch.zeros(2, 3).to(d).copy_(grid(d, 3, 2)).cpu()
)
def copies_count_elements_only() -> None:
    """copy_() takes a source of any shape with as many elements as its target."""
    right = torch.Tensor.copy_

    def copy_(self: Tensor, source: Tensor, *rest: Any, **named: Any) -> Tensor:
        same = source.shape != self.shape and source.numel() == self.numel()
        elsewhere = {source.device.type, self.device.type} != {"cpu"}
        return right(self, source.reshape(self.shape) if same and elsewhere else source,
                     *rest, **named)  # fmt: skip

    replace(torch.Tensor, "copy_", copy_)


@kernel(
    "bernoulli_.Tensor",
    touches=("bernoulli", "contract:rng"),
    shows=lambda d: (
        torch.zeros(9, dtype=torch.int64).to(d).bernoulli_(vector(d, 0.999)).sum().cpu()
    ),
)
def chances_are_of_the_targets_dtype(
    own: Stand, x: Tensor, p: Tensor, *, generator: Any = None
) -> Tensor:
    """bernoulli_() of whole numbers cuts its chances to 0 or 1."""
    return own(x, p.to(x.dtype).to(p.dtype), generator=generator)
