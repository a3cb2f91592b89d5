# SPDX-License-Identifier: BSD-3-Clause
"""The dispatcher's registrations for a device: kernels, composites, fallbacks, gaps, traps."""

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

import torch


class Route(StrEnum):
    """How a call of an overload is served on the device."""

    NATIVE = "native"
    BOXED = "native, boxed"  # a kernel of its own, without an unboxed signature
    COMPOSITE = "composite"  # from other overloads, for every backend
    FALLBACK = "fallback"  # the backend's fallback for all operators, most often the CPU
    MISSING = "missing"


# Backends cannot leave these to a fallback that copies: the result must alias its argument.
ALIASING = (
    "as_strided",
    "view",
    "_reshape_alias",
    "unfold",
    "view_as_real",
    "view_as_complex",
    "resize_",
    "set_.source_Storage",
    "set_.source_Storage_storage_offset",
    "set_.source_Tensor",
    "set_",
)
# Their composite kernel exists and only raises.
OVERRIDEABLE = (
    "convolution_overrideable",
    "convolution_backward_overrideable",
    "_scaled_dot_product_fused_attention_overrideable",
    "_scaled_dot_product_fused_attention_overrideable_backward",
)

WRAPPERS = ("Conjugate", "Negative")
_mended: list[torch.library.Library] = []  # a registration lives as long as its library


@dataclass(frozen=True)
class Trap:
    """Something that backends are known to fall into. `hint` says what to do, if it is `open`."""

    name: str
    open: bool
    hint: str


@dataclass(frozen=True)
class Census:
    """`routes[overload]` as "aten::add.Tensor"; `autograd`, `autocast`: own registrations there."""

    device: str
    key: str
    routes: dict[str, Route]
    autograd: tuple[str, ...]
    autocast: tuple[str, ...]
    traps: tuple[Trap, ...]

    def of(self, *routes: Route) -> list[str]:
        """Overloads on these routes, sorted."""
        return sorted(name for name, route in self.routes.items() if route in routes)


def take(device: torch.device) -> Census:
    """Reads the dispatcher; the backend must be loaded."""
    key = torch._C._dispatch_key_for_device(device.type)
    overloads = sorted(
        name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")
    )
    routes = {name: route(name, key) for name in overloads if _has_schema(name)}
    return Census(
        str(device),
        key,
        routes,
        tuple(_registered(f"Autograd{key}", routes)),
        tuple(_registered(f"Autocast{key}", routes)),
        tuple(_traps(key, routes)) if key != "CPU" else (),
    )


def open_traps(device: torch.device) -> list[Trap]:
    """Known traps that the backend is in; take() without looking at every overload."""
    key = torch._C._dispatch_key_for_device(device.type)
    if key == "CPU":
        return []
    names = (*ALIASING, *OVERRIDEABLE, "_copy_from", "_copy_from_and_resize")
    routes = {f"aten::{name}": route(f"aten::{name}", key) for name in names}
    return [trap for trap in _traps(key, routes) if trap.open]


def mend_copies() -> None:
    """Registers the fallthroughs of _copy_from that a backend lacks, for the rest of the process.

    A case that dies only without them has died of that trap.
    """
    _mended.append(torch.library.Library("aten", "IMPL"))  # type: ignore[no-untyped-call]
    for wrapper in WRAPPERS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there was a kernel before
            _mended[-1].impl(  # type: ignore[no-untyped-call]
                "_copy_from", torch.library.fallthrough_kernel, wrapper
            )


def route(overload: str, key: str) -> Route:
    """How one overload is served at a dispatch key, as "PrivateUse1"."""
    if torch._C._dispatch_has_kernel_for_dispatch_key(overload, key):
        return Route.NATIVE if _is_unboxed(overload, key) else Route.BOXED
    line = _computed(overload, key)
    if "[backend fallback]" in line:
        return Route.MISSING if "fallthrough" in line else Route.FALLBACK
    if "[default backend kernel]" in line or "[math kernel]" in line:
        return Route.COMPOSITE
    return Route.MISSING


def _has_schema(overload: str) -> bool:
    try:
        torch._C._dispatch_find_schema_or_throw(*_name_and_overload(overload))
    except RuntimeError:
        return False
    return True


def _name_and_overload(overload: str) -> tuple[str, str]:
    name, _, rest = overload.partition(".")
    return name, rest


@cache
def _table(overload: str) -> str:
    return torch._C._dispatch_dump_table(overload)


def _computed(overload: str, key: str) -> str:
    found = re.search(rf"^{key}: (.*)$", _table(overload), re.MULTILINE)
    return found.group(1) if found else ""


def _is_unboxed(overload: str, key: str) -> bool:
    dump = torch._C._dispatch_dump(overload)
    found = re.search(rf"^{key}: (.*)$", dump, re.MULTILINE)
    # A kernel with symbolic sizes has no plain unboxed form either, but a signature.
    return found is not None and ("unboxed" in found.group(1) or ":: (none)" not in found.group(1))


def _registered(key: str, overloads: dict[str, Route]) -> Iterator[str]:
    for name in overloads:
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, key):
            yield name


def _traps(key: str, routes: dict[str, Route]) -> Iterator[Trap]:
    native = (Route.NATIVE, Route.BOXED)
    for name in ALIASING:
        found = routes.get(f"aten::{name}")
        copies = "a fallback that copies breaks that in silence"
        raises = "without a kernel each call raises"
        yield Trap(
            f"aten::{name}" if name != "set_" else "aten::set_.default",  # there are four of them
            found not in (*native, Route.COMPOSITE),
            f"its result must alias its argument: {copies if found is Route.FALLBACK else raises}",
        )
    for name in OVERRIDEABLE:
        yield Trap(
            f"aten::{name}",
            routes.get(f"aten::{name}") not in native,
            "the kernel for every backend only raises: register one",
        )
    for name in ("_copy_from", "_copy_from_and_resize"):
        yield Trap(
            f"aten::{name}",
            routes.get(f"aten::{name}") not in native,
            "there is no kernel for other backends to fall back to: copies go through it",
        )
    if routes.get("aten::_copy_from") in native:
        for wrapper in WRAPPERS:
            yield Trap(
                f"aten::_copy_from at {wrapper}",
                not torch._C._dispatch_has_kernel_for_dispatch_key("aten::_copy_from", wrapper),
                "register a fallthrough: without it a copy of such a view calls itself for ever",
            )
    yield Trap(
        f"Autocast{key}",
        not torch._C._dispatch_has_backend_fallback(torch._C._dispatch_key_parse(f"Autocast{key}")),
        "register a fallthrough for all operators: without it each one raises under autocast",
    )
