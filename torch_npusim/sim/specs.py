# SPDX-License-Identifier: BSD-3-Clause
"""Specifications of devices: torch_npusim/specs/devices/*.toml, or a file of the user's own.

Each number stands beside the key of its source:

    [memory]
    capacity_gib = [80, "datasheet"]

    [sources]
    datasheet = "NVIDIA A100 Tensor Core GPU datasheet (2021)"
"""

import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_npusim import _C

__all__ = ["BUILT_IN", "Spec", "SpecError", "capability", "load", "names"]

FOLDER = Path(__file__).parents[1] / "specs" / "devices"
#: The specifications of backend/spec.cpp, which need no file.
BUILT_IN = ("npusim-one", "npusim-mini")
#: The compute capability of an A100, which has every dtype that npusim has.
DEFAULT_CAPABILITY = (8, 0)

# section -> key -> (unit, what stands in for a missing one; None: it must be there)
_KEYS: dict[str, dict[str, tuple[float, float | None]]] = {
    "memory": {"capacity_gib": (1 << 30, None), "bandwidth_gb_s": (1e9, None)},
    "peak_tflops": {
        "f32": (1e12, None), "f64": (1e12, None), "f16": (1e12, None),
        "i8": (1e12, 0), "other": (1e12, 0), "tf32": (1e12, 0),
    },
    "link": {"host_gb_s": (1e9, None), "pageable_gb_s": (1e9, None), "peer_gb_s": (1e9, None)},
    "latency_us": {
        "launch": (1e3, None), "kernel_floor": (1e3, None), "copy_floor": (1e3, None),
        "query": (1e3, 0.5), "record": (1e3, 1.0),
    },
    "achievable": {
        "matmul": (1, 1), "convolution": (1, 1), "attention": (1, 1), "bandwidth": (1, 1),
    },
    "ramp_us": {"matmul": (1e3, 0), "convolution": (1e3, 0), "attention": (1e3, 0)},
}  # fmt: skip
_TOP = {"title", "capability", "multiprocessors", "sources", *_KEYS}
_MAY_BE_ZERO = {"latency_us", "ramp_us"}


class SpecError(ValueError):
    """A specification that cannot be used; the message names the file, the place and the remedy."""


@dataclass(frozen=True)
class Spec:
    """A specification from a file.

    Attributes:
        name: "h100-sxm"; of a file of the user's own its name without ".toml".
        title: The device's name.
        capability: Compute capability (major, minor).
        multiprocessors: How many there are.
        numbers: "memory.bandwidth_gb_s" and so on -> value, in the unit of the key.
        sources: The same keys -> where the number is from.
    """

    name: str
    title: str
    capability: tuple[int, int]
    multiprocessors: int
    numbers: dict[str, float]
    sources: dict[str, str]

    def value(self, key: str) -> float:
        """Returns a number in bytes, seconds^-1 or ns."""
        section, name = key.split(".")
        return self.numbers[key] * _KEYS[section][name][0]


def names() -> list[str]:
    """Returns the names that NPUSIM_SPEC accepts beside paths."""
    return [*BUILT_IN, *sorted(path.stem for path in FOLDER.glob("*.toml"))]


def load(name: str) -> Spec:
    """Reads the specification `name`: of this package, or a path that ends in .toml.

    Raises:
        SpecError: If there is none, or it is not complete and sound.
    """
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    if not path.is_file():
        raise SpecError(
            f"there is no device specification `{name}`; accepted: {', '.join(names())}, or a path "
            f"to a file that ends in .toml"
        )
    try:
        with path.open("rb") as file:
            return _parse(path, tomllib.load(file))
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{path}: not a TOML file: {error}") from None


def _parse(path: Path, table: dict[str, Any]) -> Spec:
    def fail(what: str) -> SpecError:
        return SpecError(f"{path}: {what}")

    if unknown := table.keys() - _TOP:
        raise fail(f"`{min(unknown)}` is unknown; accepted: {', '.join(sorted(_TOP))}")
    sources = table.get("sources", {})
    if not isinstance(sources, dict) or not all(isinstance(text, str) for text in sources.values()):
        raise fail("[sources] must map keys to texts")

    def number(place: str, given: Any, zero: bool) -> tuple[float, str]:
        if not (isinstance(given, list) and len(given) == 2):
            raise fail(f'`{place}` must be [number, "key of its source"], got {given!r}')
        value, source = given
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            raise fail(f"`{place}` must be a number, got {value!r}")
        if value < 0 or (value == 0 and not zero):
            raise fail(f"`{place}` must be more than 0, got {value}")
        if source not in sources:
            raise fail(f"`{place}` names the source {source!r}, which [sources] does not have")
        return value, sources[source]

    numbers: dict[str, float] = {}
    origins: dict[str, str] = {}
    for section, keys in _KEYS.items():
        given = table.get(section, {})
        if not isinstance(given, dict):
            raise fail(f"[{section}] must be a table")
        if unknown := given.keys() - keys.keys():
            raise fail(f"`{section}.{min(unknown)}` is unknown; accepted: {', '.join(keys)}")
        for key, (_, default) in keys.items():
            place = f"{section}.{key}"
            if key in given:
                numbers[place], origins[place] = number(place, given[key], section in _MAY_BE_ZERO)
            elif default is None:
                raise fail(f"`{place}` is missing")
            else:
                numbers[place] = default
            if section == "achievable" and numbers[place] > 1:
                raise fail(f"`{place}` is a share of the peak, at most 1, got {numbers[place]}")
    capability = table.get("capability", [1, 0])
    if not (
        isinstance(capability, list)
        and len(capability) == 2
        and all(isinstance(part, int) and part >= 0 for part in capability)
    ):
        raise fail(f"`capability` must be [major, minor], got {capability!r}")
    count, origins["multiprocessors"] = number(
        "multiprocessors", table.get("multiprocessors"), zero=False
    )
    title = table.get("title", path.stem)
    if not isinstance(title, str):
        raise fail(f"`title` must be a text, got {title!r}")
    return Spec(path.stem, title, (capability[0], capability[1]), int(count), numbers, origins)


def define(name: str) -> Spec | None:
    """Makes `name` known to the devices of this process, before their first use.

    Returns the specification, or None if the name is one that needs no file.
    """
    if name in BUILT_IN:
        return None
    spec = load(name)
    peaks = [spec.value(f"peak_tflops.{key}") for key in ("f32", "f64", "f16", "i8")]
    peaks[3] = peaks[3] or peaks[2]
    other = spec.value("peak_tflops.other") or peaks[0]
    work = ("matmul", "convolution", "attention")
    _C.define_spec(
        name,  # as NPUSIM_SPEC says it
        int(spec.value("memory.capacity_gib")),
        [*peaks, other, spec.value("peak_tflops.tf32")],
        [1.0, *(spec.value(f"achievable.{key}") for key in work)],
        [0, *(round(spec.value(f"ramp_us.{key}")) for key in work)],
        [
            spec.value("memory.bandwidth_gb_s"),
            spec.value("achievable.bandwidth"),
            spec.value("link.host_gb_s"),
            spec.value("link.pageable_gb_s"),
            spec.value("link.peer_gb_s"),
        ],
        [round(spec.value(f"latency_us.{key}")) for key in _KEYS["latency_us"]],
        [*spec.capability, spec.multiprocessors],
    )
    return spec


#: The specification that NPUSIM_SPEC chose, if it is of a file.
chosen: Spec | None = None


def apply(name: str) -> None:
    """Defines what NPUSIM_SPEC names; called once, when the device is registered.

    Raises:
        ImportError: If it cannot be used.
    """
    global chosen
    try:
        chosen = define(name)
    except SpecError as error:
        raise ImportError(f"NPUSIM_SPEC: {error}") from None


def capability() -> tuple[int, int]:
    """Returns the major and minor number of the compute capability that a run is judged as.

    NPUSIM_CUDA_CAPABILITY or pytest --npusim-cuda-capability says it; else the GPU that NPUSIM_SPEC
    names; else it is DEFAULT_CAPABILITY.
    """
    asked = next(k["value"] for k in _C.knobs() if k["name"] == "NPUSIM_CUDA_CAPABILITY")
    if asked:
        major, _, minor = asked.partition(".")
        return int(major), int(minor)
    if chosen is not None and chosen.capability >= (7, 0):
        return chosen.capability
    return DEFAULT_CAPABILITY
