# SPDX-License-Identifier: BSD-3-Clause
"""A watched worker records each call of an overload before it makes the call.

If the worker dies, the last record names the call that killed it.
"""

from collections import deque
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from npusim_conformance.backend import census
from npusim_conformance.judge.attribution import Observer, to_host
from npusim_conformance.run.current_case import CallInFlight

ROUTE_MAX = 4  # calls before the one in flight


class Teller(Observer):  # type: ignore[no-untyped-call]
    """Tells the runner of every call before it is made; see CallInFlight."""

    def __init__(self, device: torch.device, import_name: str, flight: Path) -> None:
        super().__init__(device, import_name)
        self.flight = flight
        self.before: deque[str] = deque(maxlen=ROUTE_MAX)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.concerns(args, kwargs):
            leaves = pytree.tree_leaves((args, kwargs))
            tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
            bits = [
                f" of a {name} view"
                for name, has in (("conj", torch.Tensor.is_conj), ("neg", torch.Tensor.is_neg))
                if any(has(tensor) for tensor in tensors)
            ]
            given = ", ".join(_shown(leaf) for leaf in leaves)
            after = f", after {', '.join(self.before)}" if self.before else ""
            text = f"{func.name()}({given}), {self._route(func)}{after}"
            # Copying the arguments may itself be what dies, so the call is told before.
            CallInFlight(func.name(), "".join(bits), text, "").write(self.flight)
            script = self.script(func, to_host((args, kwargs), marks_host=True))
            CallInFlight(func.name(), "".join(bits), text, script).write(self.flight)
            self.before.append(func.name())
        return func(*args, **kwargs)

    def _route(self, func: Any) -> str:
        key = torch._C._dispatch_key_for_device(self.device.type)
        return f"route: {census.route(func.name(), key).value}"


def _shown(leaf: Any) -> str:
    if not isinstance(leaf, torch.Tensor):
        return repr(leaf)[:40]
    shape = "x".join(map(str, leaf.shape)) or "0-d"
    return f"{str(leaf.dtype).removeprefix('torch.')} {shape} on {leaf.device}"
