# SPDX-License-Identifier: BSD-3-Clause
"""In which order to write kernels, from what each operator needs."""

import contextlib
import os
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from npusim_conformance.record.log import RunRecord
from npusim_conformance.record.summary import Summary
from npusim_conformance.verdict import NOT_EXECUTED

# The CPU's counterparts of overloads that other backends call if they lack kernels of their own.
_CPU_ONLY = {
    "aten::mkldnn_convolution": "aten::convolution_overrideable",
    "aten::_slow_conv2d_forward": "aten::convolution_overrideable",
    "aten::slow_conv3d_forward": "aten::convolution_overrideable",
    "aten::slow_conv_dilated2d": "aten::convolution_overrideable",
    "aten::slow_conv_dilated3d": "aten::convolution_overrideable",
    "aten::slow_conv_transpose2d": "aten::convolution_overrideable",
    "aten::slow_conv_transpose3d": "aten::convolution_overrideable",
    "aten::mkldnn_convolution_backward": "aten::convolution_backward_overrideable",
    "aten::_slow_conv2d_backward.output_mask": "aten::convolution_backward_overrideable",
}

Needs = dict[str, frozenset[str]]  # operator -> overloads without a kernel of the device's own


@dataclass(frozen=True)
class Step:
    """One kernel. `unlocks`: operators that need nothing more after it; `ready`: so far in all."""

    overload: str
    unlocks: tuple[str, ...]
    used_by: int  # operators still blocked that need it
    ready: int


def plan(needs: Needs, kernels: int) -> list[Step]:
    """Greedy: next is the kernel that most operators wait for, those near completion above all.

    An operator that lacks n kernels counts 2 ** (1 - n) for each; with only one left it counts 1.
    """
    left = {name: set(found) for name, found in needs.items() if found}
    steps: list[Step] = []
    while left and len(steps) < kernels:
        weights: Counter[str] = Counter()
        users: Counter[str] = Counter()
        for found in left.values():
            for overload in found:
                weights[overload] += 2.0 ** (1 - len(found))  # type: ignore[assignment]
                users[overload] += 1
        best = min(weights, key=lambda name: (-weights[name], -users[name], name))
        unlocked = sorted(name for name, found in left.items() if found == {best})
        left = {name: found - {best} for name, found in left.items() if found != {best}}
        steps.append(Step(best, tuple(unlocked), users[best], len(needs) - len(left)))
    return steps


@dataclass(frozen=True)
class Mend:
    """One cause of failures. `passing`: cases that pass once it and those before it are mended."""

    cause: str
    cases: int
    passing: int


def mends(summary: Summary) -> list[Mend]:
    """The causes of a run's failures, those first whose end makes most cases pass."""
    found = []
    passing = 0
    for cause in summary.causes:  # the most frequent first
        passing += len(cause.outcomes)
        who = cause.cause if cause.culprit in cause.cause else f"{cause.culprit}: {cause.cause}"
        found.append(Mend(who, len(cause.outcomes), passing))
    return found


def needs_of_log(record: RunRecord) -> Needs:
    """Per subject, what its cases met. After a missing kernel a case saw nothing further."""
    needs: dict[str, set[str]] = {}
    for outcome in record.outcomes.values():
        if outcome.status in NOT_EXECUTED:
            continue
        found = needs.setdefault(outcome.case.split("/", 1)[0], set())
        found.update(outcome.fallbacks)
        if outcome.missing:
            found.add(outcome.missing)
    return {name: frozenset(found) for name, found in needs.items()}


def needs_of_trace(operators: str, samples: int, census: Any) -> Needs:
    """Per operator, the overloads that its forward and backward reach and the device lacks."""
    from npusim_conformance.backend.census import Route
    from npusim_conformance.case import matches
    from npusim_conformance.inputs import torch_testing

    served = {Route.NATIVE, Route.BOXED}
    needs: Needs = {}
    for name, operator in torch_testing.operators().items():
        if not matches(name, operators) or name.startswith(torch_testing.CUDA_SOURCE):
            continue
        dtype = torch_testing.default_dtype(operator)
        if dtype is None:
            continue
        reached = _reached(operator, dtype, samples)
        needs[f"op:{name}"] = frozenset(
            _kernel_of(overload)
            for overload in reached
            if not served & {census.routes.get(overload), census.routes.get(_kernel_of(overload))}
        )
    return needs


def _reached(operator: Any, dtype: Any, samples: int) -> set[str]:
    """Overloads with a kernel of the CPU's own that some samples reach, not below one another."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from npusim_conformance.inputs import torch_testing

    reached: set[str] = set()
    differentiable = dtype in operator.backward_dtypes and operator.supports_autograd
    try:
        raw = torch_testing.sample_inputs(operator, dtype, differentiable, 0)
    except Exception:  # in torch's own code; what cannot be called needs nothing
        return reached
    chosen = [raw[number * len(raw) // samples] for number in range(min(samples, len(raw)))]
    config = torch._C._profiler._ExperimentalConfig(capture_overload_names=True)
    with (
        warnings.catch_warnings(),
        _quiet(),
        profile(activities=[ProfilerActivity.CPU], experimental_config=config) as profiler,
    ):
        warnings.simplefilter("ignore")
        for sample in chosen:
            try:
                result = operator(sample.input, *sample.args, **sample.kwargs)
                if differentiable:
                    _backward(sample.output_process_fn_grad(result))
            except Exception:  # the CPU fails it too
                continue
    for event in profiler.profiler.kineto_results.experimental_event_tree():
        _collect(event, reached)
    return reached


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps from stderr what the profiler writes there each time that it starts and stops."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _backward(result: Any) -> None:
    import torch
    from torch.utils import _pytree as pytree

    leaves = [
        leaf
        for leaf in pytree.tree_leaves(result)
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    ]
    if leaves:
        torch.autograd.backward(leaves, [torch.ones_like(leaf) for leaf in leaves])


def _collect(event: Any, reached: set[str]) -> None:
    from npusim_conformance.backend.census import Route, route

    name = event.name
    if name.startswith("aten::"):
        overload = getattr(event, "overload_name", "")
        full = f"{name}.{overload}" if overload else name
        try:
            served = route(full, "CPU")
        except RuntimeError:  # a name that is no operator
            served = Route.COMPOSITE
        if served in (Route.NATIVE, Route.BOXED):
            reached.add(full)
            return  # what the CPU's kernel calls is its own business
    for child in event.children:
        _collect(child, reached)


@cache
def _kernel_of(overload: str) -> str:
    """The overload that a backend writes a kernel for: of structured operators the out= form.

    A structured operator is known by its composite for non-functional backends, which allocates and
    calls the out= form; that form is the one that takes the same arguments before its out.
    """
    import torch

    overload = _CPU_ONLY.get(overload, overload)
    alias = "CompositeExplicitAutogradNonFunctional"
    if not torch._C._dispatch_has_kernel_for_dispatch_key(overload, alias):
        return overload
    wanted = _arguments(overload)
    base = overload.split(".")[0]
    base = base[:-1] if base.endswith("_") and not base.endswith("__") else base
    for candidate in _overloads_of(base):
        if candidate != overload and "out" in candidate and _arguments(candidate) == wanted:
            return candidate
    return overload


def _arguments(overload: str) -> tuple[str, ...]:
    import torch

    name, _, rest = overload.partition(".")
    arguments = torch._C._get_schema(name, rest).arguments
    return tuple(f"{item.name}: {item.type}" for item in arguments if not item.is_out)


@cache
def _overloads_of(base: str) -> tuple[str, ...]:
    import torch

    return tuple(
        f"{base}.{rest}" if rest else base for rest in torch._C._jit_get_operation(base)[1]
    )
