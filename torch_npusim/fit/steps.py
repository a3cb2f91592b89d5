# SPDX-License-Identifier: BSD-3-Clause
"""The time of a step, from the parts of a run: of an optimizer, or a call of the model."""

import math
import operator
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import pairwise
from typing import Any

from torch_npusim.fit.result import StepTime, Work
from torch_npusim.sim import specs
from torch_npusim.sim.timeline import PRECISIONS

STEP, BEGIN, REST = "step", "begin", "rest"

# Operators whose operations are the model's. Inductor mostly calls their kernels; where it takes
# them apart (mv, dot), they become part of a fused kernel.
_PRODUCTS = frozenset(
    ("mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "addr", "einsum",
     "convolution", "convolution_backward")
)  # fmt: skip


@dataclass(frozen=True)
class Input:
    """The first tensor among the arguments of an outermost module with parameters.

    Attributes:
        model: Number of the module.
        sizes: None without a tensor.
        is_tokens: Whether it is of integers.
        is_certain: Whether it is there, and no other argument is computed by what learns.
        learns: Whether the module is in training and has parameters that learn.
    """

    model: int
    sizes: tuple[int, ...]
    is_tokens: bool
    is_certain: bool
    learns: bool


@dataclass(frozen=True)
class Part:
    """A part of a run, from the end of the part before.

    Attributes:
        end: STEP of an optimizer, "call of Net", BEGIN of such a call, or REST of the run.
        end_ns: Virtual time.
        thread: That came to the end.
        flops: Precision -> operations of products, and "again": those of them that checkpoints
            compute again.
        busy_ns: The sum of the commands' times.
        not_counted: Kernels whose products, if any, are no part of `flops`.
        inputs: Of models.
    """

    end: str
    end_ns: int = 0
    thread: int = 0
    flops: Counter[str] = field(default_factory=Counter)
    busy_ns: float = 0.0
    not_counted: frozenset[str] = frozenset()
    inputs: tuple[Input, ...] = ()

    def __add__(self, later: "Part") -> "Part":
        return replace(
            later,
            flops=self.flops + later.flops,
            busy_ns=self.busy_ns + later.busy_ns,
            not_counted=self.not_counted | later.not_counted,
            inputs=self.inputs + later.inputs,
        )


def step_of(parts: Sequence[Part]) -> str:
    """Returns the end of a step: STEP, or without an optimizer the most frequent call."""
    ends = Counter(part.end for part in parts if part.end not in (BEGIN, REST))
    return STEP if STEP in ends else max(ends, key=ends.__getitem__, default=STEP)


def threads(parts: Sequence[Part]) -> int:
    """Returns how many threads ran steps."""
    what = step_of(parts)
    return len({part.thread for part in parts if part.end == what})


def step_time(
    parts: Sequence[Part], spec: str | None, peaks: Sequence[float], devices: int
) -> StepTime | None:
    """Returns the time of a step, with the interval of its errors.

    None of fewer than two steps of an optimizer, and of steps on several threads: these share one
    clock of the host, so that the time between two steps depends on the order in which threads run.

    Args:
        parts: Of the run.
        spec: The specification whose interval is given.
        peaks: Operations a second of a device, in the order of PRECISIONS.
        devices: That the script uses.
    """
    what = step_of(parts)
    ends = [number for number, part in enumerate(parts) if part.end == what]
    count = len(ends)
    if count == 1 and what != STEP:
        ends.insert(0, ends[0] - 1)  # the beginning of the only call
    if len(ends) < 2 or threads(parts) > 1:
        return None
    spans = [parts[after].end_ns - parts[before].end_ns for before, after in pairwise(ends)]
    steps = [reduce(operator.add, parts[i + 1 : k + 1]) for i, k in pairwise(ends)]
    ns = int(statistics.median_low(spans))
    step = steps[spans.index(ns)]
    works = step.busy_ns / devices / max(ns, 1)
    idles = specs.device_idles(works)
    found = StepTime(ns, specs.interval(spec, works), count, what=what, device_idles=idles)
    if ns <= 0:
        return found
    return replace(
        found,
        work=_work(step.flops, found, peaks, devices),
        not_counted=sorted(step.not_counted),
        **_rates(parts, steps, ns),
    )


def _rates(parts: Sequence[Part], steps: Sequence[Part], ns: int) -> dict[str, Any]:
    """Returns the sizes of inputs and the rates of a step; nothing where they are not certain.

    The model is the only module with parameters that is called from outside. Where an optimizer
    steps, it is the only one that learns.
    """
    by_optimizer = steps[0].end == STEP

    def inputs_of(part: Part) -> list[Input]:
        return [each for each in part.inputs if each.learns or not by_optimizer]

    met = [each for part in parts for each in inputs_of(part)]
    first, *others = map(inputs_of, steps)
    sizes = [each.sizes for each in first]
    if not first or any([each.sizes for each in other] != sizes for other in others):
        return {}
    if len({each.model for each in met}) > 1 or not all(each.is_certain for each in met):
        return {}
    samples = sum(size[0] for size in sizes if size)
    tokens = sum(map(math.prod, sizes))
    return {
        "inputs": list(sizes[0]),
        "per_second": samples * 1e9 / ns if samples else None,
        "tokens_per_second": tokens * 1e9 / ns if first[0].is_tokens else None,
    }


def not_counted(commands: Iterable[str]) -> frozenset[str]:
    """Returns the commands whose products are not seen: Triton's, and fused products."""
    inductor = sys.modules.get("torch_npusim.inductor.runtime")
    fused: dict[str, Any] = getattr(inductor, "kernels", {})
    interpreter = sys.modules.get("torch_npusim.triton_interpreter")
    triton: set[str] = getattr(interpreter, "launched", set())
    found = set(commands) & triton
    for name in set(commands) & fused.keys():
        if any(operator.split(".")[1] in _PRODUCTS for operator in fused[name].operators):
            found.add(name)
    return frozenset(found)


def _work(flops: Counter[str], step: StepTime, peaks: Sequence[float], devices: int) -> Work | None:
    by_precision = {name: flops[name] for name in PRECISIONS}
    most = max(by_precision, key=lambda name: by_precision[name])
    if not by_precision[most]:
        return None
    peak = devices * peaks[PRECISIONS.index(most)]
    model = sum(by_precision.values()) - flops["again"]
    mfu = model / (peak * step.ns / 1e9)
    low, high = step.interval
    return Work(model, flops["again"], most, peak, mfu, (mfu / high, mfu / low))
