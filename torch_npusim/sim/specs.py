# SPDX-License-Identifier: BSD-3-Clause
"""Specifications of devices: torch_npusim/specs/devices/*.toml, or a file of the user's own.

Each number stands beside the key of its source:

    [memory]
    capacity_gib = [80, "datasheet"]

    [sources]
    datasheet = "NVIDIA A100 Tensor Core GPU datasheet (2021)"
"""

import functools
import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_npusim import _C

__all__ = [
    "BUILT_IN",
    "Host",
    "Spec",
    "SpecError",
    "capability",
    "device_idles",
    "dispatch_us",
    "gain_interval",
    "host_names",
    "interval",
    "layers",
    "load",
    "load_host",
    "names",
    "use_host",
]

FOLDER = Path(__file__).parents[1] / "specs" / "devices"
HOSTS = FOLDER.parent / "hosts"
#: The specifications of backend/spec.cpp, which need no file.
BUILT_IN = ("npusim-one", "npusim-mini")
#: The compute capability of an A100, which has every dtype that npusim has.
DEFAULT_CAPABILITY = (8, 0)

# section -> key -> (unit, what stands in for a missing one; None: it must be there)
_KEYS: dict[str, dict[str, tuple[float, float | None]]] = {
    "memory": {
        "capacity_gib": (1 << 30, None), "bandwidth_gb_s": (1e9, None), "cache_mib": (1 << 20, 0),
        "cache_gb_s": (1e9, 0), "bus_bits": (1, 0),
    },
    "peak_tflops": {
        "f32": (1e12, None), "f64": (1e12, None), "f16": (1e12, None),
        "i8": (1e12, 0), "other": (1e12, 0), "tf32": (1e12, 0),
    },
    "link": {"host_gb_s": (1e9, None), "pageable_gb_s": (1e9, None), "peer_gb_s": (1e9, None)},
    "latency_us": {
        "launch": (1e3, 4), "kernel_floor": (1e3, 0), "copy_floor": (1e3, 8),
        "query": (1e3, 0.5), "record": (1e3, 1), "next_floor": (1e3, 0),
        "pageable_floor": (1e3, 0),
    },
    "achievable": {
        "matmul": (1, 1), "convolution": (1, 1), "attention": (1, 1), "bandwidth": (1, 1),
    },
    # Of peaks without matrix units, where they differ: float32 without TF32.
    "achievable_plain": {"matmul": (1, 1), "convolution": (1, 1), "attention": (1, 1)},
    "ramp_us": {"matmul": (1e3, 0), "convolution": (1e3, 0), "attention": (1e3, 0)},
}  # fmt: skip
#: Capabilities of multiprocessors with 64 lanes of float32 (CUDA C++ Programming Guide, arithmetic
#: instructions); others have 128, as those of AMD count in their peaks.
_OF_64_LANES = {(6, 0), (7, 0), (7, 5), (8, 0)}
_TOP = {"title", "board", "capability", "multiprocessors", "sources", *_KEYS}
_MAY_BE_ZERO = {"latency_us", "ramp_us"}


def lanes(capability: tuple[int, int]) -> int:
    """Returns how many operations of float32 a multiprocessor begins in a clock."""
    return 64 if capability in _OF_64_LANES else 128


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
        path: As load() was asked for it.
        board: Its kind in specs/classes.toml, whose values stand for what the file does not say;
            empty: shares of 1, and arithmetic beside traffic.
        numbers: "memory.bandwidth_gb_s" and so on -> value, in the unit of the key.
        sources: The same keys -> where the number is from.
    """

    name: str
    title: str
    capability: tuple[int, int]
    multiprocessors: int
    path: str
    board: str
    numbers: dict[str, float]
    sources: dict[str, str]

    @property
    def clocks(self) -> float:
        """Clocks in a second, of all multiprocessors: the peak of float32 has two operations each
        of 64 or 128 lanes in one.
        """
        return self.value("peak_tflops.f32") / (2 * lanes(self.capability))

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
            return _parse(name, path, tomllib.load(file))
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{path}: not a TOML file: {error}") from None


def _parse(asked: str, path: Path, table: dict[str, Any]) -> Spec:
    def fail(what: str) -> SpecError:
        return SpecError(f"{path}: {what}")

    if unknown := table.keys() - _TOP:
        raise fail(f"`{min(unknown)}` is unknown; accepted: {', '.join(sorted(_TOP))}")
    sources = table.get("sources", {})
    if not isinstance(sources, dict) or not all(isinstance(text, str) for text in sources.values()):
        raise fail("[sources] must map keys to texts")
    sources = _shared_sources() | sources

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
                if section == "latency_us" and default:
                    origins[place] = _shared_sources()["assumed"]
            if section.startswith("achievable") and key in given and numbers[place] > 1:
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
    board = table.get("board", "")
    if board and board not in classes()["board"]:
        raise fail(f"`board` must be one of {', '.join(classes()['board'])}, got {board!r}")
    if not board and "kernel_floor" not in table.get("latency_us", {}):
        raise fail("`latency_us.kernel_floor` is missing")
    return Spec(
        path.stem,
        title,
        (capability[0], capability[1]),
        int(count),
        asked,
        board,
        numbers,
        origins,
    )


@functools.cache
def classes() -> dict[str, Any]:
    """Returns specs/classes.toml: what stands for classes of work on kinds of boards."""
    with (FOLDER.parent / "classes.toml").open("rb") as file:
        return tomllib.load(file)


@functools.cache
def _shared_sources() -> dict[str, str]:
    with (FOLDER.parent / "sources.toml").open("rb") as file:
        return tomllib.load(file)


def _shares(spec: Spec) -> tuple[list[list[float]], list[float], float]:
    """Returns shares by class of work, what shapes commands' times, and the floor in us.

    Shapes are overlap, wave loss, the cache's size and gain, the rates of unaligned products and of
    the cache, and whether shares are of the operations that kernels do, not of those that count.

    A share of the file's own stands in place of that of its class of work, on all peaks; one of
    [achievable_plain] on those without matrix units.
    """
    own = {key: spec.numbers[f"achievable.{key}"] for key in _KEYS["achievable"]}
    given = {key: own[key] for key in own if f"achievable.{key}" in spec.sources}
    plain = {
        key: spec.numbers[f"achievable_plain.{key}"]
        for key in _KEYS["achievable_plain"]
        if f"achievable_plain.{key}" in spec.sources
    }
    work: tuple[str, ...] = tuple(classes()["matrix"])
    if not spec.board:
        made = []
        for of in (own, own | plain):
            arithmetic = [of.get(name, 1.0) for name in work]
            arithmetic[work.index("batched_matmul")] = of["matmul"]
            for name in ("depthwise", "depthwise_backward", "grouped", "grouped_backward"):
                arithmetic[work.index(name)] = of["convolution"]
            arithmetic[work.index("attention_backward")] = of["attention"]
            made.append(arithmetic)
        made.append([own["bandwidth"]] * len(work))
        return made, [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0], 0.0
    table, board = classes(), classes()["board"][spec.board]
    made = [
        [of[name] if name in of else table[kind][name] * board["arithmetic"] for name in work]
        for kind, of in (("matrix", given), ("plain", given | plain))
    ]
    model = table["model"]
    # A byte takes its time in the memory, and in a multiprocessor.
    port = spec.value("memory.bandwidth_gb_s") / (spec.clocks * model["port_bytes"])
    traffic = {
        name: 1 / (1 / (share * board["bandwidth"]) + port)
        for name, share in table["bandwidth"].items()
    }
    scale = own["bandwidth"] / traffic["streaming"] if "bandwidth" in given else 1.0
    rate = spec.value("memory.cache_gb_s")
    shape = [
        model["overlap"],
        model["wave_loss"],
        spec.value("memory.cache_mib") * (1 if rate else model["cache_share"]),
        model["cache_gain"],
        spec.clocks * model["narrow_flops"],
        rate,
        1.0 if {"attention", "convolution"} <= given.keys() else 0.0,
    ]
    made.append([traffic[name] * scale for name in work])
    return made, shape, model["kernel_floor_us"]


def define(name: str) -> Spec | None:
    """Makes `name` known to the devices of this process, before their first use.

    Returns the specification, or None if the name is one that needs no file.
    """
    if name in BUILT_IN:
        return None
    spec = load(name)
    _define(spec, None)
    return spec


def _define(spec: Spec, dispatch_us: float | None) -> None:
    peaks = [spec.value(f"peak_tflops.{key}") for key in ("f32", "f64", "f16", "i8")]
    peaks[3] = peaks[3] or peaks[2]
    other = spec.value("peak_tflops.other") or peaks[0]
    shares, shape, floor_us = _shares(spec)
    ramps = ("matmul", "convolution", "attention")
    latencies = {key: spec.value(f"latency_us.{key}") for key in _KEYS["latency_us"]}
    latencies["pageable_floor"] = latencies["pageable_floor"] or latencies["copy_floor"]
    if "latency_us.kernel_floor" not in spec.sources:
        latencies["kernel_floor"] = 1e3 * floor_us
    if dispatch_us is not None:
        latencies["launch"] = 1e3 * dispatch_us
    _C.define_spec(
        spec.path,  # as NPUSIM_SPEC says it
        int(spec.value("memory.capacity_gib")),
        [*peaks, other, spec.value("peak_tflops.tf32")],
        shares,
        [
            0,
            *(round(spec.value(f"ramp_us.{key}")) for key in ramps),
            *[0] * (len(shares[0]) - 1 - len(ramps)),
        ],
        shape,
        [
            spec.value("memory.bandwidth_gb_s"),
            spec.value("link.host_gb_s"),
            spec.value("link.pageable_gb_s"),
            spec.value("link.peer_gb_s"),
        ],
        [round(ns) for ns in latencies.values()],
        [*spec.capability, spec.multiprocessors],
    )


def device_idles(busy: float) -> bool:
    """Whether the device idles for more than a tenth of a time: then the host decides it.

    Args:
        busy: Share of the time in which the device works.
    """
    return bool(busy < classes()["interval"]["busy"])


def interval(name: str | None = None, busy: float = 1.0) -> tuple[float, float]:
    """Returns factors of a modelled time between which measured times lie.

    The errors are of rows that were left out of the fit with their chip, their family or their
    source (docs/reference/validation.md). Nine of ten times that the device decides lie between
    the factors. Where the device idles, too few machines are known for a promise: the factors are
    the largest error seen.

    Args:
        name: Of a specification; default: that of this process. (1, 1) for one that is made up.
        busy: Share of the time in which the device works.
    """
    if (spec := _of_file(name)) is None or not spec.board:
        return (1.0, 1.0)
    low, high = classes()["interval"]["idle" if device_idles(busy) else "device"]
    return (low, high)


def gain_interval(cause: str, name: str | None = None) -> tuple[float, float]:
    """Returns factors of the time that is left after a change, as interval() does for times.

    A gain is the quotient of two modelled times, whose errors are alike. The errors are of pairs of
    published rows that differ in one thing (docs/reference/validation.md).

    Args:
        cause: Of an Advice.
        name: Of a specification; default: that of this process. (1, 1) for one that is made up.
    """
    if (spec := _of_file(name)) is None or not spec.board:
        return (1.0, 1.0)
    table = classes()["gain"]
    low, high = table.get(cause, table["others"])
    return (low, high)


@dataclass(frozen=True)
class Host:
    """The cost of eager Python for a host, by layer of the framework.

    Attributes:
        title: The host, in words.
        dispatch_us: Microseconds for a command.
        source: Where the numbers are from.
        module_us: Microseconds for a call of a torch.nn.Module, beside those of its commands.
        backward_us: Microseconds for a command of a backward pass, with the nodes of autograd
            around it; 0: as dispatch_us.
        parameter_us: Microseconds for a parameter with a gradient in a step of an optimizer, with
            what autograd and zero_grad() do for it.
        step_us: Microseconds for a step of an optimizer, with the begin of a backward pass.
        library_us: Microseconds that a product or a convolution takes beside a command.
        reduction_us: Microseconds that a reduction or a lookup by index takes beside a command.
        call_us: Microseconds for a view, and for memory without values.
        kernel_us: Microseconds for each kernel that cuDNN launches beside its first: a step of a
            recurrent layer, a conversion of a convolution's operand.
        input_us: Microseconds for each tensor that a compiled graph takes, forward and backward:
            guards, asserts of its size, nodes of autograd.
    """

    title: str
    dispatch_us: float
    source: str
    module_us: float = 0.0
    backward_us: float = 0.0
    parameter_us: float = 0.0
    step_us: float = 0.0
    library_us: float = 0.0
    reduction_us: float = 0.0
    call_us: float = 0.0
    kernel_us: float = 0.0
    input_us: float = 0.0

    def __str__(self) -> str:
        more = {
            "a command of a backward pass": self.backward_us,
            "a parameter": self.parameter_us,
            "a step of an optimizer": self.step_us,
            "a product beside its command": self.library_us,
            "a reduction beside its command": self.reduction_us,
            "a view": self.call_us,
            "a further kernel of cuDNN": self.kernel_us,
            "a tensor that a compiled graph takes": self.input_us,
        }
        told = "".join(f", {us:g} us for {what}" for what, us in more.items() if us)
        return (
            f"{self.dispatch_us:g} us for a command, {self.module_us:g} us for the call of a "
            f"module{told}: {self.title}"
        )


def host_names() -> list[str]:
    """Returns the hosts that load_host() knows by name."""
    return ["eager", *sorted(path.stem for path in HOSTS.glob("*.toml"))]


def load_host(name: str) -> Host:
    """Returns a host: "eager", that of the published figures; one of specs/hosts; or of a file.

    Args:
        name: A name of host_names(), a path that ends in .toml, or microseconds.

    Raises:
        ValueError: If it is none of them, or the file is not complete and sound.
    """
    if name == "eager":
        return Host(
            "the host of the published figures",
            float(classes()["host"]["dispatch_us"]),
            "fitted to published times of programs: docs/reference/validation.md",
            float(classes()["host"]["module_us"]),
        )
    path = Path(name) if name.endswith(".toml") else HOSTS / f"{name}.toml"
    if path.is_file():
        return _parse_host(path)
    try:
        cost = float(name)
    except ValueError:
        cost = -1
    if not 0 <= cost < 1e6:
        raise ValueError(
            f"--host takes microseconds, spec, {', '.join(host_names())} or a path to a file that "
            f"ends in .toml, got {name}"
        )
    return Host("as given", cost, "the caller")


#: Keys of a file of a host beside `dispatch_us`.
_LAYERS = (
    *("module_us", "backward_us", "parameter_us", "step_us"),
    *("library_us", "reduction_us", "call_us", "kernel_us", "input_us"),
)


def _parse_host(path: Path) -> Host:
    try:
        table = tomllib.loads(path.read_text())
        cost, source = table["dispatch_us"]
        layers = {name: float(table[name][0]) for name in _LAYERS if name in table}
        title = str(table.get("title", path.stem))
        found = Host(title, float(cost), table["sources"][source], **layers)
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError):
        found = None
    if found is None or not all(
        0 <= us < 1e6 for us in (found.dispatch_us, *(getattr(found, name) for name in _LAYERS))
    ):
        raise ValueError(
            f'{path}: a host is `dispatch_us = [microseconds, "key of its source"]`, perhaps '
            f"{', '.join(f'`{name}`' for name in _LAYERS)} alike, and a table [sources] with that "
            "key"
        )
    return found


def layers(host: str, name: str | None = None) -> Host | None:
    """Returns the host whose layers are charged (sim.host_layers); None: the launch alone.

    Raises:
        ValueError: As for load_host().
    """
    return None if dispatch_us(host, name) is None else load_host(host)


def dispatch_us(host: str, name: str | None = None) -> float | None:
    """Returns the cost of a command for the host, in microseconds; None: the launch alone.

    Args:
        host: "spec": the launch alone. Or as for load_host(); "eager" is None for a device that is
            made up.
        name: Of a specification; default: that of this process.

    Raises:
        ValueError: As for load_host().
    """
    if host == "spec":
        return None
    found = load_host(host)
    spec = _of_file(name)
    return None if host == "eager" and (spec is None or not spec.board) else found.dispatch_us


def use_host(host: str = "eager") -> str:
    """Charges each launch of this process with the cost that dispatch_us() returns.

    Recordings of torch_npusim.profiling charge its other layers. Call it before the first use of a
    device. It changes nothing for a device that is made up. Returns whose cost a launch has, in
    words.

    Raises:
        ValueError: As for dispatch_us().
    """
    global used
    cost = dispatch_us(host)
    if chosen is None or not chosen.board or cost is None:
        return "the launch alone, of the device's specification"
    _define(chosen, cost)
    used = load_host(host)
    return used.title


def _of_file(name: str | None) -> Spec | None:
    return chosen if name is None else None if name in BUILT_IN else load(name)


#: The specification that NPUSIM_SPEC chose, if it is of a file.
chosen: Spec | None = None
#: The host that use_host() was told.
used: Host | None = None


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
