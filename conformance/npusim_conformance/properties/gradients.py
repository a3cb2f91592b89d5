# SPDX-License-Identifier: BSD-3-Clause
"""Gradients: against the CPU, and against finite differences on the device itself."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
from torch.autograd.gradcheck import GradcheckError
from torch.utils import _pytree as pytree

from npusim_conformance.backend.device import CPU
from npusim_conformance.inputs.samples import Call, Sample, on_cpu
from npusim_conformance.inputs.subjects import Subject
from npusim_conformance.inputs.transfer import tensors_of
from npusim_conformance.judge.agreement import plain, same_bits
from npusim_conformance.properties.base import (
    FAILURES_MAX,
    Dtypes,
    Run,
    SampleProperty,
    in_profiles,
)
from npusim_conformance.properties.calls import LAYOUT_DEFINED
from npusim_conformance.verdict import Mismatch, NotApplicable

# Finite differences of larger inputs cost minutes and show nothing that smaller ones do not.
ELEMENTS_MAX = 20_000
# Poolings have more than a thousand samples, which differ in what the forward value shows.
SAMPLES_MAX = 40
# Larger inputs take the CPU seconds in the other dtypes; float32 shows what is in them.
LARGE = 100_000
DOUBLE = (torch.float64, torch.complex128)
NONDET_TOL = 1e-12  # torch.testing's own where an order is nobody's promise


class Backward(SampleProperty):
    """The gradients of every input are the CPU's."""

    name = "backward"
    profiles = in_profiles(
        smoke=Dtypes.DEFAULT_DIFFERENTIABLE,
        standard=Dtypes.DEFAULT_DIFFERENTIABLE,
        full=Dtypes.DIFFERENTIABLE,
    )
    requires_grad = True
    few_if_short = 3

    def applies(self, subject: Subject, dtype: torch.dtype | None) -> str:
        """Operators with a backward."""
        return "" if subject.info.supports_autograd else "the operator has no gradient"

    def examine(self, run: Run, sample: Sample, device: torch.device) -> None:
        """The same random cotangents go back through the operator there and here."""
        elements = sum(tensor.numel() for tensor in tensors_of((sample.raw.input, sample.raw.args)))
        if elements > LARGE and run.dtype != torch.float32:
            raise NotApplicable("large inputs are looked at in float32 only")
        if sample.is_random:
            run.reseed()
        expected = gradients(sample, sample.copy(CPU), run.seed)
        if not expected:
            raise NotApplicable("no result that depends on an input with a gradient")
        if sample.is_random:
            run.reseed()
        got = gradients(sample, sample.copy(device), run.seed, is_watched=True)
        got = got or [None] * len(expected)  # no result depends on an input
        for number, (one, other) in enumerate(zip(expected, got, strict=True)):
            if (one is None) != (other is None):
                there, here = ("no", "one") if other is None else ("a", "none")
                raise Mismatch(f"{there} gradient for input {number}, on the CPU there is {here}")
        if sample.is_random and not run.under_test.expectations.cpu_generator:
            run.agreement.check_metadata(expected, got, device, "gradient of input")
            return
        run.agreement.check(
            expected,
            got,
            device,
            "gradient of input",
            recompute=lambda vary: gradients(sample, sample.copy_varied(vary), run.seed),
        )


def numbers_like(output: torch.Tensor, seed: int, step: float = 1 / 64) -> torch.Tensor:
    """Random multiples of a step from -2 to 2 that depend on the shape alone.

    Those of 1/64 are exact in every dtype but float8.
    """
    generator = torch.Generator().manual_seed(seed)
    most = round(2 / step)
    values = torch.randint(-most, most + 1, (*output.shape, 2), generator=generator) * step
    values = torch.view_as_complex(values) if output.is_complex() else values[..., 0]
    return values.contiguous().to(output.dtype).to(output.device)


def gradients(
    sample: Sample,
    call: Call,
    seed: int,
    cotangent: Callable[[torch.Tensor, int, float], torch.Tensor] = numbers_like,
    *,
    is_watched: bool = False,
) -> list[torch.Tensor | None]:
    """One gradient per input that requires one, or nothing where no result depends on them.

    Sparse gradients are coalesced: the order of their entries is nobody's promise. A watched
    backward that writes to results or cotangents is a Mismatch.
    """
    inputs = [leaf for leaf in tensors_of(call) if leaf.requires_grad]
    given, args, kwargs = call
    results = sample.finished(sample.operator(given, *args, **kwargs))
    outputs = [_dense(leaf) for leaf in tensors_of(results) if leaf.requires_grad]
    if not inputs or not outputs:
        return []
    # A sample of float32 has cotangents of more digits than half precision, the same in float64.
    raw = tensors_of((sample.raw.input, sample.raw.args, sample.raw.kwargs))
    sizes = [leaf.dtype.to_real().itemsize for leaf in raw if leaf.requires_grad]
    step = 2.0**-18 if min(sizes, default=0) >= 4 else 1 / 64
    cotangents = [cotangent(output, seed + index, step) for index, output in enumerate(outputs)]
    watched = [*outputs, *cotangents] if is_watched else []
    before = [plain(given).clone() for given in watched]
    grads = torch.autograd.grad(outputs, inputs, cotangents, allow_unused=True)
    for number, given in enumerate(watched):
        if not same_bits(before[number], plain(given)):
            place, kind = number % len(outputs), "result" if number < len(outputs) else "cotangent"
            raise Mismatch(f"the backward writes to {kind} {place} of the forward")
    return [
        grad.coalesce() if grad is not None and grad.layout == torch.sparse_coo else grad
        for grad in grads
    ]


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.layout == torch.strided else tensor.to_dense()


class FiniteDifferences(SampleProperty):
    """The base of the properties that hold derivatives against finite differences."""

    profiles = in_profiles(full=Dtypes.DIFFERENTIABLE)
    requires_grad = True
    needs: ClassVar[tuple[str, str]]  # the attribute of an operator's record, and its meaning

    def applies(self, subject: Subject, dtype: torch.dtype | None) -> str:
        """Operators with this derivative."""
        attribute, derivative = self.needs
        return "" if getattr(subject.info, attribute) else f"the operator has no {derivative}"

    def dtypes(self, subject: Subject, policy: Dtypes) -> list[torch.dtype | None]:
        """float64 and complex128: in no other are finite differences near the derivative."""
        return [dtype for dtype in super().dtypes(subject, policy) if dtype in DOUBLE]

    def check(self, run: Run) -> None:
        """Examines samples spread over all."""
        samples = run.samples(requires_grad=True)
        for sample in samples[:: -(-len(samples) // SAMPLES_MAX) or 1]:
            run.attempt(sample.index, self._bind(run, sample))
            if len(run.failures) >= FAILURES_MAX:
                return

    def examine(self, run: Run, sample: Sample, device: torch.device) -> None:
        """Runs the check of one sample; what it raises says which derivative is wrong."""
        call = sample.copy(CPU)
        inputs = tuple(leaf for leaf in tensors_of(call) if leaf.requires_grad)
        if not inputs:
            raise NotApplicable("no input requires a gradient")
        if sum(leaf.numel() for leaf in inputs) > ELEMENTS_MAX:
            raise NotApplicable(f"more than {ELEMENTS_MAX} elements")
        is_part = any(leaf.untyped_storage().nbytes() > leaf.nbytes for leaf in inputs)
        if is_part and sample.subject.name in LAYOUT_DEFINED:
            raise NotApplicable("an input is a part of memory that its copies are without")
        function = _Function(sample, call, device)
        if sample.is_random and not _repeats(function, inputs):
            raise NotApplicable("one seed gives other values: the property `random` tells")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                self.differentiate(sample, function, inputs)
            except GradcheckError as error:
                raise Mismatch(" ".join(str(error).split())[:1000]) from error

    def differentiate(
        self, sample: Sample, function: "_Function", inputs: tuple[torch.Tensor, ...]
    ) -> None:
        """Raises where the derivatives of `function` at `inputs` are wrong."""
        raise NotImplementedError


class _Function:
    """The operator as a function of those inputs that require a gradient, all of the CPU.

    The operator and its derivatives run on the device; what surrounds them, torch's finite
    differences too, computes on the CPU.
    """

    def __init__(self, sample: Sample, call: Call, device: torch.device) -> None:
        self._sample, self._device = sample, device
        self._leaves, self._structure = pytree.tree_flatten(call)
        self._given = {id(leaf): place for place, leaf in enumerate(self._leaves)}
        self._there = pytree.tree_leaves(sample.copy(device))
        self.scatters = False  # whether the device's gradients come with gaps

    def __call__(self, *inputs: torch.Tensor) -> Any:
        """The operator's results."""
        places = (
            place
            for place, leaf in enumerate(self._leaves)
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad
        )
        filled = list(self._leaves)
        for place, value in zip(places, inputs, strict=True):
            filled[place] = value
        given, args, kwargs = pytree.tree_unflatten(filled, self._structure)
        found = self._sample.operator.gradcheck_wrapper(self._operator, given, *args, **kwargs)
        return self._sample.finished(found)

    def _operator(self, *args: Any, **kwargs: Any) -> Any:
        there = pytree.tree_map(self._placed, (args, kwargs))
        results = self._sample.operator.op(*there[0], **there[1])
        if self.scatters:
            for tensor in tensors_of(results):
                if tensor.requires_grad and tensor.layout == torch.strided:
                    tensor.register_hook(_with_gaps)  # type: ignore[no-untyped-call]
        return on_cpu(results)

    def _placed(self, leaf: Any) -> Any:
        """An argument where the operator takes it: what was not made here, as the sample has it."""
        place = self._given.get(id(leaf))
        if place is not None and not (isinstance(leaf, torch.Tensor) and leaf.requires_grad):
            return self._there[place]
        return leaf.to(self._device) if isinstance(leaf, torch.Tensor) else leaf


def _with_gaps(grad: torch.Tensor | None) -> torch.Tensor | None:
    if grad is None or grad.layout != torch.strided:
        return grad
    twice = grad.unsqueeze(-1).expand(*grad.shape, 2)
    return twice.clone(memory_format=torch.contiguous_format)[..., 0]


def _repeats(function: _Function, inputs: tuple[torch.Tensor, ...]) -> bool:
    """Whether two calls give the same bits: torch's database seeds random operators itself."""
    with torch.no_grad():
        first, second = (tensors_of(function(*inputs)) for _ in range(2))
    return all(
        same_bits(plain(one), plain(other)) for one, other in zip(first, second, strict=True)
    )


class Gradcheck(FiniteDifferences):
    """Backward gives what finite differences on the device give, batched and undefined too."""

    name = "gradcheck"
    needs = ("supports_autograd", "gradient")

    def differentiate(
        self, sample: Sample, function: "_Function", inputs: tuple[torch.Tensor, ...]
    ) -> None:
        """With the operator's own settings."""
        operator = sample.operator
        torch.autograd.gradcheck(
            function,
            inputs,
            check_batched_grad=operator.check_batched_grad,
            check_undefined_grad=True,
            **_settings(operator),
        )


class Gradgradcheck(FiniteDifferences):
    """The gradient of the gradient gives what finite differences of the gradient give."""

    name = "gradgradcheck"
    needs = ("supports_gradgrad", "second gradient")

    def differentiate(
        self, sample: Sample, function: "_Function", inputs: tuple[torch.Tensor, ...]
    ) -> None:
        """With contiguous and other cotangents."""
        operator = sample.operator
        check = partial(
            torch.autograd.gradgradcheck,
            function,
            inputs,
            check_batched_grad=operator.check_batched_gradgrad,
            **_settings(operator),
        )
        check(gen_non_contig_grad_outputs=False)
        function.scatters = True
        check(gen_non_contig_grad_outputs=True)


class ForwardAD(FiniteDifferences):
    """Forward-mode derivatives are what finite differences on the device give."""

    name = "forward_ad"
    needs = ("supports_forward_ad", "forward-mode AD")

    def differentiate(
        self, sample: Sample, function: "_Function", inputs: tuple[torch.Tensor, ...]
    ) -> None:
        """Batched too, where the operator allows."""
        operator = sample.operator
        torch.autograd.gradcheck(
            function,
            inputs,
            check_forward_ad=True,
            check_backward_ad=False,
            check_batched_grad=False,
            check_batched_forward_grad=operator.check_batched_forward_grad,
            check_undefined_grad=False,
            **_settings(operator),
        )


def _settings(operator: Any) -> dict[str, Any]:
    """Settings of all checks. An unset fast mode counts as fast, as for torch's own tests.

    Two threads of autograd, the device's and the CPU's, may add up a gradient in either order.
    """
    return {
        "check_grad_dtypes": True,
        "nondet_tol": max(operator.gradcheck_nondet_tol, NONDET_TOL),
        "fast_mode": operator.gradcheck_fast_mode is not False,
    }


PROPERTIES = [Backward, Gradcheck, Gradgradcheck, ForwardAD]
