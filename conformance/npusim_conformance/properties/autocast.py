# SPDX-License-Identifier: BSD-3-Clause
"""Operators under torch.autocast: they run, and cast as they should.

Casts that all backends of torch share are demanded: products and convolutions run in the low dtype,
some losses in float32; the loss that half precision cannot hold may be refused. Other casts
are the backend's affair: there the value must be the CPU's without casts, the CPU's under its own
autocast, or what the CPU gives when it repeats, operation by operation, what the device did, casts
included.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from npusim_conformance.backend.device import CPU
from npusim_conformance.inputs import torch_testing
from npusim_conformance.inputs.samples import Call, Sample
from npusim_conformance.inputs.subjects import Subject
from npusim_conformance.properties.base import (
    Dtypes,
    Run,
    SampleProperty,
    in_profiles,
    require,
    values_are_defined,
)
from npusim_conformance.verdict import Mismatch, NotApplicable

LOW_DTYPES = (torch.bfloat16, torch.float16)


class Autocast(SampleProperty):
    """Under autocast the operator runs, and computes in the dtype that it should."""

    name = "autocast"
    profiles = in_profiles(standard=Dtypes.DEFAULT, full=Dtypes.ALL)
    few = 10

    def dtypes(self, subject: Subject, policy: Dtypes) -> list[torch.dtype | None]:
        """The dtypes to cast to, for operators that compute in float32."""
        if torch.float32 not in subject.dtypes():
            return []
        return list(LOW_DTYPES if policy is Dtypes.ALL else LOW_DTYPES[:1])

    def check(self, run: Run) -> None:
        """Samples are float32: the dtype of the case is the one to cast to."""
        for sample in run.few(self.few or 0, dtype=torch.float32):
            run.attempt(sample.index, self._bind(run, sample))

    def examine(self, run: Run, sample: Sample, device: torch.device) -> None:
        """Compares with the CPU, by what is known of the operator's casts."""
        low = run.dtype
        assert low is not None
        _require_autocast(device, low)
        function = sample.operator.name.removeprefix("nn.functional.")
        policy = torch_testing.autocast_policies().get(function)
        if policy in ("low", "float32"):
            self._demand(run, sample, device, low, low if policy == "low" else torch.float32)
            return
        try:
            self._tolerate(run, sample, device, low)
        except RuntimeError:
            if policy != "banned":
                raise

    @staticmethod
    def _demand(
        run: Run,
        sample: Sample,
        device: torch.device,
        low: torch.dtype,
        computed: torch.dtype,
    ) -> None:
        """For operators with a fixed cast: inputs of either dtype are computed in one."""
        for dtype in (torch.float32, low):
            expected = _run(sample, _cast(_cast(sample.copy(CPU), dtype), computed))
            with torch.autocast(device.type, dtype=low):
                got = _run(sample, _cast(sample.copy(device), dtype))
            run.agreement.check(expected, got, device, f"result from {dtype}")

    @staticmethod
    def _tolerate(run: Run, sample: Sample, device: torch.device, low: torch.dtype) -> None:
        """For the others: some plausible computation on the CPU gives the same."""
        if sample.is_random:
            run.reseed()
        plain = sample.run(CPU)
        if sample.is_random:
            run.reseed()
        recorder = Recorder()
        call = sample.copy(device)
        with torch.autocast(device.type, dtype=low), recorder.watching(call):
            got = _run(sample, call)
        _check_dtypes(plain, got, low)
        if sample.is_random or not values_are_defined(sample.operator):
            return

        def under_autocast() -> Any:
            with torch.autocast("cpu", dtype=low):
                return sample.run(CPU)

        ways: list[Callable[[], Any]] = [
            lambda: plain,
            under_autocast,
            lambda: recorder.repeat(sample.copy(CPU), got),
        ]
        first: Mismatch | None = None
        for way in ways:
            try:
                expected = way()
            except Exception:  # the CPU has no kernel for what the device did
                continue
            try:
                run.agreement.check(sample.finished(expected), sample.finished(got), device)
                return
            except Mismatch as mismatch:
                first = first or mismatch
        if first is not None and recorder.is_complete:
            raise first


def _require_autocast(device: torch.device, low: torch.dtype) -> None:
    if not torch.amp.is_autocast_available(device.type):
        raise NotApplicable("torch.amp.is_autocast_available() is False for the device")
    with torch.autocast(device.type, dtype=low):
        if not torch.is_autocast_enabled(device.type):
            raise NotApplicable(f"the device's autocast does not claim {low}")


def _cast(call: Call, dtype: torch.dtype) -> Call:
    """The call with its floating tensors in another dtype."""

    def cast(leaf: Any) -> Any:
        is_floating = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        return leaf.to(dtype) if is_floating else leaf

    moved: Call = pytree.tree_map(cast, call)
    return moved


def _run(sample: Sample, call: Call) -> Any:
    given, args, kwargs = call
    return sample.operator(given, *args, **kwargs)


def _check_dtypes(plain: Any, got: Any, low: torch.dtype) -> None:
    expected, results = pytree.tree_leaves(plain), pytree.tree_leaves(got)
    require(len(expected) == len(results), f"{len(results)} results, on the CPU {len(expected)}")
    for number, (one, other) in enumerate(zip(expected, results, strict=True)):
        if not isinstance(one, torch.Tensor):
            continue
        allowed = {one.dtype, low, torch.float32} if one.is_floating_point() else {one.dtype}
        require(
            other.dtype in allowed,
            f"result {number}: {other.dtype} under autocast to {low}, without {one.dtype}",
        )
        require(
            other.shape == one.shape,
            f"result {number}: shape {tuple(other.shape)}, on the CPU {tuple(one.shape)}",
        )


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the operations below autocast, casts included, so that the CPU can repeat them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.is_complete = True
        self._steps: list[tuple[Any, Any, Any, list[int]]] = []
        self._names: dict[int, int] = {}  # id of a tensor -> its number
        self._kept: list[Any] = []  # so that ids stay unique

    def watching(self, call: Call) -> "Recorder":
        """Itself, with the tensors of `call` known as inputs."""
        self._number(call)
        return self

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = pytree.tree_map(self._name, (args, kwargs or {}))
        result = func(*args, **(kwargs or {}))
        self._steps.append((func, *given, self._number(result)))
        return result

    def repeat(self, call: Call, result: Any) -> Any:
        """The same steps on the CPU, from the tensors of `call`; what became of `result`."""
        known: dict[int, torch.Tensor] = {}
        leaves = [leaf for leaf in pytree.tree_leaves(call) if isinstance(leaf, torch.Tensor)]
        known.update(enumerate(leaves))
        for func, args, kwargs, numbers in self._steps:
            args, kwargs = pytree.tree_map(lambda leaf: _resolve(leaf, known), (args, kwargs))
            produced = pytree.tree_leaves(func(*args, **kwargs))
            tensors = [leaf for leaf in produced if isinstance(leaf, torch.Tensor)]
            known.update(zip(numbers, tensors, strict=True))
        return pytree.tree_map(lambda leaf: _resolve(self._name(leaf), known), result)

    def _number(self, tree: Any) -> list[int]:
        numbers = []
        for leaf in pytree.tree_leaves(tree):
            if isinstance(leaf, torch.Tensor):
                self._kept.append(leaf)
                numbers.append(self._names.setdefault(id(leaf), len(self._names)))
        return numbers

    def _name(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            if id(leaf) not in self._names:
                self.is_complete = False  # made where a dispatch mode does not look
            return Numbered(self._names.get(id(leaf), -1))
        return leaf


class Numbered:
    """Stands for a recorded tensor."""

    def __init__(self, number: int) -> None:
        self.number = number


def _resolve(leaf: Any, known: dict[int, torch.Tensor]) -> Any:
    if isinstance(leaf, Numbered):
        return known[leaf.number]
    is_device = isinstance(leaf, torch.device) and leaf.type != "meta"
    return CPU if is_device else leaf


PROPERTIES = [Autocast]
