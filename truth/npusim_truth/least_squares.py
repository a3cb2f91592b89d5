# SPDX-License-Identifier: BSD-3-Clause
"""From a recording to a specification: the visible half makes it, the other half judges it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from npusim_truth import claims, comparison
from npusim_truth.recordings import Key, Recording, TruthError, is_held_out, spec_of
from torch_npusim.sim import specs

_LARGE = 1 << 26  # bytes: what no cache of 50 MB holds
_HEAVY = 1e10  # operations
_PEAKS = {"float32": "f32", "tf32": "tf32", "float16": "f16", "bfloat16": "f16", "float64": "f64"}


@dataclass(frozen=True)
class Fit:
    """A specification and how well it predicts.

    Attributes:
        text: The TOML file.
        numbers: Key of the specification -> value.
        measured: Which of them the recording gave; the others are those of the base.
        base: The specification that the rest is from; None: the numbers of an assumed device.
    """

    text: str
    numbers: dict[str, float]
    measured: tuple[str, ...]
    base: str | None


@dataclass(frozen=True)
class Error:
    """Relative errors of modelled times, of one half."""

    half: str
    count: int
    median: float
    largest: float

    def __str__(self) -> str:
        if not self.count:
            return f"{self.half}: no times"
        return (
            f"{self.half}: {self.count} times, median error {self.median:.1%}, "
            f"largest {self.largest:.1%}"
        )


def visible(recording: Recording) -> Recording:
    """Returns a recording without the half of each section that is held out."""
    kept = {
        section: {
            key: value
            for key, value in answers.items()
            if section == "identity" or not is_held_out(Key(section, key))
        }
        for section, answers in recording.answers.items()
    }
    return replace(recording, answers=kept)


def fit(recording: Recording) -> Fit:
    """Returns the specification that the visible half of a recording makes.

    Raises:
        TruthError: If the recording has no rates, or does not say what the device is.
    """
    seen = visible(recording)
    rates = {
        key: value
        for key, value in seen.answers.get("rates", {}).items()
        if isinstance(value, dict) and value.get("us")
    }
    if not rates:
        raise TruthError(f"{recording.name}: its visible half has no rates; record that section")
    for name in ("capability", "total_memory", "multi_processor_count"):
        if seen.identity(name) is None:
            raise TruthError(f"{recording.name}: it does not say `{name}`; record identity")
    known = spec_of(recording)
    base = specs.load(known or "a100-80-sxm")
    # Shares that the file does not state stay those of the board's classes of work.
    stated = {key: value for key, value in base.numbers.items() if key in base.sources}
    numbers = {key: value for key, value in stated.items() if value or "latency" in key}
    measured = _measure(rates, numbers, is_known=known is not None)
    measured["memory.capacity_gib"] = seen.identity("total_memory") / (1 << 30)
    numbers.update(measured)
    text = _toml(recording, seen, base.board, numbers, set(measured), known)
    return Fit(text, numbers, tuple(sorted(measured)), known)


def _measure(rates: dict[str, Any], base: dict[str, float], is_known: bool) -> dict[str, float]:
    def speeds(kind: str, amount: str, least: float, *words: str) -> list[float]:
        """Returns bytes or operations per second."""
        return [
            value[amount] / value["us"] * 1e6
            for key, value in rates.items()
            if key.partition("|")[0] == kind
            and value.get(amount, 0) >= least
            and all(word in key.split("|") for word in words)
        ]

    found: dict[str, float] = {}

    def note(key: str, values: Iterable[float], of: Callable[[list[float]], float]) -> None:
        listed = list(values)
        if listed:
            found[key] = float(f"{of(listed):.4g}")

    whole = ("copy", "add", "relu", "fill")
    streams = [s for word in whole for s in speeds("stream", "bytes", _LARGE, word)]
    if is_known:
        peak = base["memory.bandwidth_gb_s"] * 1e9
        note("achievable.bandwidth", (min(s / peak, 1.0) for s in streams), statistics.median)
    else:
        note("memory.bandwidth_gb_s", (s / 1e9 for s in streams), max)
        found["achievable.bandwidth"] = 1.0
        for dtype, name in _PEAKS.items():
            best = [s / 1e12 for s in speeds("mm", "flops", _HEAVY, dtype)]
            before = [found[f"peak_tflops.{name}"]] if f"peak_tflops.{name}" in found else []
            note(f"peak_tflops.{name}", best and best + before, max)
    peaks = {**base, **found}

    def shares(kind: str, least: float, dtypes: Iterable[str], *words: str) -> list[float]:
        return [
            min(speed / (peaks[f"peak_tflops.{_PEAKS[dtype]}"] * 1e12), 1.0)
            for dtype in dtypes
            if f"peak_tflops.{_PEAKS[dtype]}" in peaks
            for speed in speeds(kind, "flops", least, dtype, *words)
        ]

    # float64 has matrix units on some chips and none on others: its products say nothing here.
    halves = ("float16", "bfloat16")
    note("achievable.matmul", shares("mm", _HEAVY, ("tf32", *halves)), max)
    note("achievable_plain.matmul", shares("mm", _HEAVY, ("float32",)), max)
    # Other layouts are converted, which is memory's time.
    note("achievable.convolution", shares("conv", 0, halves, "channels_last"), max)
    # What is causal does half of the operations that the question counts, or more.
    note("achievable.attention", shares("sdpa", _HEAVY, halves, "full"), max)
    note("achievable_plain.attention", shares("sdpa", _HEAVY, ("float32",), "full"), max)
    for pinned, name in (("pinned", "host_gb_s"), ("pageable", "pageable_gb_s")):
        note(f"link.{name}", (s / 1e9 for s in speeds("copy", "bytes", _LARGE, pinned)), max)
    short = [v["us"] for k, v in rates.items() if k.startswith("copy|") and k.endswith("|4096")]
    note("latency_us.copy_floor", short, min)
    # Launches of single commands in a row: each waits for the host.
    single = ("x.add_(1)", "x + y", "x.fill_(0)", "x.sum()", "x @ y")
    asked = [f"{kind}|{text}" for kind in ("gap", "host") for text in single]
    gaps = [rates[key]["us"] for key in asked if key in rates]
    note("latency_us.launch", gaps, statistics.median)
    return found


def _toml(
    recording: Recording,
    seen: Recording,
    board: str,
    numbers: dict[str, float],
    measured: set[str],
    known: str | None,
) -> str:
    major, minor = seen.identity("capability")
    lines = [
        f"# Fitted by `npusim truth fit` to the visible half of {recording.name}.",
        f'title = "{recording.chip} (fitted)"',
        f"capability = [{major}, {minor}]",
        *([f'board = "{board}"'] if board else []),
        f'multiprocessors = [{seen.identity("multi_processor_count")}, "recording"]',
    ]
    sections: dict[str, list[str]] = {}
    for key, value in numbers.items():
        section, name = key.split(".")
        source = "recording" if key in measured else "base"
        sections.setdefault(section, []).append(f'{name} = [{value:.6g}, "{source}"]')
    for section, rows in sections.items():
        lines += ["", f"[{section}]", *rows]
    of = f"the specification {known}" if known else "a100-80-sxm, for want of a better one: assumed"
    lines += [
        "",
        "[sources]",
        f'recording = "the recorder on {recording.chip}, torch {recording.torch}"',
        f'base = "{of}"',
    ]
    return "\n".join(lines) + "\n"


def errors(recording: Recording, spec: str | Path) -> list[Error]:
    """Returns the errors of the modelled rates of a specification on both halves, apart.

    npusim is asked in processes of its own. Rates without a model (load, kernels) do not count.
    """
    rates = {
        key: value
        for key, value in recording.answers.get("rates", {}).items()
        if isinstance(value, dict) and "us" in value
    }
    identity = recording.answers.get("identity", {})
    asked = replace(recording, answers={"identity": identity, "rates": rates})
    verdicts = comparison.compare(asked, claims.ask(asked, str(spec)))
    halves = []
    for held_out, name in ((False, "fitted half"), (True, "held-out half")):
        found = [
            abs(v.error) for v in verdicts if v.error is not None and v.is_held_out == held_out
        ]
        median = statistics.median(found) if found else 0.0
        halves.append(Error(name, len(found), median, max(found, default=0.0)))
    return halves
