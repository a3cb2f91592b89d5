# SPDX-License-Identifier: BSD-3-Clause
"""The answer of `npusim fit`, in numbers; `--json` prints these fields under these names."""

from dataclasses import asdict, dataclass, field
from typing import Any

from torch_npusim._text import format_bytes
from torch_npusim.sim.dry import Answer

__all__ = [
    "Answer",
    "DeviceFit",
    "Fit",
    "MaxPeak",
    "ModuleShare",
    "Outside",
    "Remedy",
    "StepTime",
    "Timeline",
    "Work",
    "between",
]


OUTSIDE, NOT_IN_RUN = "outside of the allocator", "not in the run"


def between(low: int, high: int) -> str:
    """Returns an interval of bytes."""
    return format_bytes(low) if low == high else f"{format_bytes(low)} to {format_bytes(high)}"


@dataclass(frozen=True)
class ModuleShare:
    """Activations of the modules of one name, at the peak.

    Attributes:
        name: Qualified, with "*" for numbers: "model.layers.*.mlp".
        kind: Their class.
        bytes: Of all of them.
        blocks: How many allocations.
    """

    name: str
    kind: str
    bytes: int
    blocks: int


@dataclass(frozen=True)
class Timeline:
    """Memory over the run: one column for each equal share of its events, where most was in use.

    Attributes:
        event: Number of the event of a column.
        time_us: The host's virtual time there.
        reserved: Bytes of the allocator.
        kinds: Bytes of tensors, by kind; the kinds of DeviceFit.at_peak.
    """

    event: list[int]
    time_us: list[int]
    reserved: list[int]
    kinds: dict[str, list[int]]


@dataclass(frozen=True)
class Outside:
    """Memory of a device that the allocator of the run does not see (specs/outside.toml).

    Attributes:
        what: Its name.
        low: The least that was seen, in bytes.
        high: The most.
        where: OUTSIDE, or NOT_IN_RUN of what the allocator of a GPU sees.
    """

    what: str
    low: int
    high: int
    where: str = OUTSIDE


@dataclass
class DeviceFit:
    """One device's part of the answer; bytes.

    Attributes:
        capacity: Of the device, as torch.cuda.mem_get_info() says it.
        outside: Memory of it that the allocator does not see.
        left_outside: How much of that this run left to others.
        peak_allocated: Most of all tensors at a time, rounded up as the allocator does.
        peak_reserved: Most of the allocator at a time.
        at_peak: When most was allocated: kind -> bytes. The sum is `peak_allocated`, or what was
            allocated when memory ran out.
        unused_at_peak: Reserved then, and not in use: fragmentation, and what the allocator keeps.
        modules: Activations then, by module, the largest first.
        lines: The lines of the program that made most of it: "file:line" -> bytes.
        peak_line: The line at which the peak was reached, or that asked for too much.
        peak_module: The module that was running; empty outside of modules.
        peak_phase: "forward", "backward", "optimizer" or "".
        asked: Bytes of the request that failed; 0: none did.
        timeline: Over the whole run.
        caught: Requests that found no memory, and after which the script went on.
    """

    capacity: int
    outside: list[Outside]
    left_outside: int
    peak_allocated: int
    peak_reserved: int
    at_peak: dict[str, int]
    unused_at_peak: int
    modules: list[ModuleShare]
    lines: dict[str, int]
    peak_line: str
    peak_module: str
    peak_phase: str
    asked: int
    timeline: Timeline
    caught: int = 0

    def outside_between(self) -> tuple[int, int]:
        """Returns the least and the most of what the allocator does not see."""
        parts = self.outside
        return sum(part.low for part in parts), sum(part.high for part in parts)

    @property
    def beside(self) -> str:
        """That interval in words; empty if there is none."""
        low, high = self.outside_between()
        where = dict.fromkeys(part.where for part in self.outside if part.high)
        return f"{between(low, high)} {' or '.join(where)}" if high else ""


@dataclass(frozen=True)
class Work:
    """Operations of products, convolutions and attention in a step, on all devices.

    Attributes:
        flops: Forward and backward pass; a multiply-add is two.
        again: Operations that checkpoints repeat, no part of `flops`.
        precision: That of most of them: a name of timeline.PRECISIONS.
        peak: Of the specification at that precision, a second: of all devices together.
        mfu: The share of the peak that `flops` are in the time of the step.
        mfu_interval: With the ends of the time's interval.
    """

    flops: float
    again: float
    precision: str
    peak: float
    mfu: float
    mfu_interval: tuple[float, float]


@dataclass(frozen=True)
class StepTime:
    """Virtual time from the end of one step to the next: the median, the first left out.

    A step is one of an optimizer; in a script without one, a call of the model. An only call is
    timed from its beginning.

    Attributes:
        ns: The time.
        interval: Factors of it between which measured steps lie (specs.interval()); (1, 1) if the
            device is made up.
        steps: How many there were.
        inputs: Sizes of the first input of the model, if all steps had the same number of calls.
        per_second: Samples a second: the first size, times the calls of a step.
        tokens_per_second: If the input is of integers: its elements.
        work: None if the step has no products.
        not_counted: Kernels of it whose products, if any, are no part of `work`: those of Triton,
            and fused ones of Inductor with a product among their operators.
        what: A step, in words: "step" of an optimizer, or "call of Net".
        device_idles: Whether the device idles for more than a tenth of the time, so that the
            interval is the largest error seen and promises nothing.
    """

    ns: int
    interval: tuple[float, float]
    steps: int
    inputs: list[int] = field(default_factory=list)
    per_second: float | None = None
    tokens_per_second: float | None = None
    work: Work | None = None
    not_counted: list[str] = field(default_factory=list)
    what: str = "step"
    device_idles: bool = False


@dataclass(frozen=True)
class Remedy:
    """A change that might help.

    Attributes:
        what: The change, in words.
        paste: Ready to paste into a shell or the program.
        tried: "replay" of this run's allocations, another "dry run", or "" if it was not tried.
        outcome: "fits", "does not fit", "not applicable" or, untried, "unknown".
        peak_reserved: The largest of the devices; None if it is not known.
        step_ns: Of the dry run; None if it is not known.
        note: Why not, or what else changes.
    """

    what: str
    paste: str
    tried: str
    outcome: str
    peak_reserved: int | None = None
    step_ns: int | None = None
    note: str = ""


@dataclass(frozen=True)
class MaxPeak:
    """The answer to --max-peak, of the device with the most reserved.

    Attributes:
        limit: In bytes.
        reserved: Most of the allocator at a time.
        allocated: Most of all tensors at a time.
        exceeded: Whether what decides is more than the limit.
        decides: Which of them is compared with the limit.
    """

    limit: int
    reserved: int
    allocated: int
    exceeded: bool
    decides: str = "reserved"


@dataclass
class Fit:
    """The answer.

    Attributes:
        script: Its name.
        arguments: Of the script.
        spec: Name of the device's specification.
        allocator: The allocator's preset, and settings.
        fits: Whether the script came to its end without running out of memory, with the most that
            was seen outside of the allocator.
        close: Whether it does so with the least alone.
        fails_at: The line that asks for too much with more outside than this run left to others.
        reason: The error of the allocator where it fits neither way.
        error: The error of another kind that ended the script; the rest is of the run until then.
        devices: The devices that allocated.
        need: Where it does not fit: most bytes reserved on a device without that limit; None if it
            fits, or if that was not tried.
        step: None without two steps of an optimizer or a call of a model, or if several threads had
            some.
        step_threads: Threads that ran steps.
        remedies: The helpful ones first.
        max_peak: Where a limit was given.
        batch: The largest that fits, where it was asked for.
        answers: Of the dry run, where the script asked for values.
        changes: `--change` -> what it changed in this run.
    """

    script: str
    fits: bool = True
    close: bool = False
    fails_at: str = ""
    arguments: list[str] = field(default_factory=list)
    spec: str = ""
    allocator: str = ""
    reason: str = ""
    error: str = ""
    devices: dict[int, DeviceFit] = field(default_factory=dict)
    need: int | None = None
    step: StepTime | None = None
    step_threads: int = 0
    remedies: list[Remedy] = field(default_factory=list)
    max_peak: MaxPeak | None = None
    batch: int | None = None
    answers: list[Answer] = field(default_factory=list)
    changes: dict[str, list[str]] = field(default_factory=dict)

    @property
    def peak_reserved(self) -> int:
        """Most bytes of the allocator on a device."""
        return max((device.peak_reserved for device in self.devices.values()), default=0)

    def limited(self, limit: int) -> MaxPeak:
        """Returns the answer to --max-peak."""
        peaks = [(each.peak_reserved, each.peak_allocated) for each in self.devices.values()]
        reserved, allocated = max(peaks, default=(0, 0))
        return MaxPeak(limit, reserved, allocated, exceeded=reserved > limit)

    @property
    def verdict(self) -> str:
        """The answer in a sentence."""
        if self.error:
            return f"{self.script} ended early, with {self.error}"
        if not self.devices:
            return f"{self.script} allocates nothing on the device."
        number, device = max(self.devices.items(), key=lambda entry: entry[1].peak_reserved)
        others = f", the fullest of {len(self.devices)}" if len(self.devices) > 1 else ""
        place = f"npusim:{number} ({self.spec}, {format_bytes(device.capacity)}{others})"
        low, high = device.outside_between()
        beside = f" beside {device.beside}" if high else ""
        if self.fits:
            share = (device.peak_reserved + high) / device.capacity
            return (
                f"{self.script} fits {place}: at most {format_bytes(device.peak_reserved)} are "
                f"reserved{beside}, {'at most ' * (low < high)}{share:.0%} of it."
            )
        need = f" It needs {format_bytes(self.need)} without that limit." if self.need else ""
        if self.close:
            return (
                f"{self.script} is close to the capacity of {place}: it fits with "
                f"the least of {device.beside}, and runs out of memory at {self.fails_at} with the "
                f"most.{need}"
            )
        if self.fails_at:
            return (
                f"{self.script} does not fit {place}: it runs out of memory at {self.fails_at}"
                f"{beside}.{need}"
            )
        failed = next((d for d in self.devices.values() if d.asked), device)
        return (
            f"{self.script} does not fit {place}: {failed.peak_line} asks for "
            f"{format_bytes(failed.asked)} while {format_bytes(sum(failed.at_peak.values()))} are "
            f"in use{beside}.{need}"
        )

    def as_dict(self) -> dict[str, Any]:
        """Returns what `--json` prints."""
        return {"verdict": self.verdict, **asdict(self)}
