# SPDX-License-Identifier: BSD-3-Clause
"""Inputs that lie or are shaped unusually: with gaps, transposed, no elements, no dimensions."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from npusim_conformance.backend.device import CPU
from npusim_conformance.inputs import torch_testing
from npusim_conformance.inputs.samples import Call, Sample
from npusim_conformance.inputs.subjects import Subject
from npusim_conformance.inputs.transfer import Transfer, tensors_of
from npusim_conformance.properties.base import (
    FAILURES_MAX,
    Dtypes,
    Property,
    Run,
    in_profiles,
    values_are_defined,
)
from npusim_conformance.properties.calls import (
    LAYOUT_DEFINED,
    Examine,
    Part,
    PartedProperty,
    operands_stay,
    same_decision,
    same_strides,
    strided,
    tried,
)
from npusim_conformance.properties.gradients import gradients
from npusim_conformance.verdict import NotApplicable


class NonContiguous(PartedProperty):
    """Inputs with gaps, offsets and exchanged dimensions give what contiguous ones give."""

    name = "noncontiguous"
    profiles = in_profiles(smoke=Dtypes.DEFAULT, standard=Dtypes.DEFAULT, full=Dtypes.ALL)
    where = "for contiguous inputs"

    def applies(self, subject: Subject, dtype: torch.dtype | None) -> str:
        """Operators that look at values, not at memory."""
        is_defined = subject.name in LAYOUT_DEFINED
        return "the result is defined by how the input lies in memory" if is_defined else ""

    def wants_gradient(self, run: Run) -> bool:
        """Where the operator has one."""
        return run.subject.info.supports_autograd and run.dtype in run.subject.dtypes(True)

    def parts(self, run: Run, sample: Sample) -> Iterator[Examine]:
        """With gaps values, then gradients; then values of what lies the other way round."""
        if run.agreement.rtol is None and run.agreement.atol is None:
            run.agreement.bitwise = False  # another loop may add in another order
            run.agreement.rtol = run.agreement.atol = _tolerance(run.dtype)
        leaves = tensors_of((sample.raw.input, sample.raw.args, sample.raw.kwargs))
        plain: dict[torch.device, Any] = {}
        gapped = _Gapped(run, sample, with_gaps, plain)
        yield Part(gapped.forward, sample=gapped.laid)
        if any(leaf.requires_grad for leaf in leaves) and self._asks_gradient(run, sample):
            yield Part(gapped.backward, sample=gapped.laid, backward=True)
        if any(leaf.dim() > 1 for leaf in leaves):
            turned = _Gapped(run, sample, reversed_in_memory, plain)
            yield Part(turned.forward, sample=turned.laid)

    @staticmethod
    def _asks_gradient(run: Run, sample: Sample) -> bool:
        """In a short run gradients, which cost most, are asked of two samples."""
        return not run.is_short or sample in run.few(2, True)


class _Gapped:
    """One sample with contiguous inputs, and with such as `lay` makes of them."""

    def __init__(
        self,
        run: Run,
        sample: Sample,
        lay: Callable[[torch.Tensor], torch.Tensor],
        plain: dict[torch.device, Any],
    ) -> None:
        self.plain = plain  # results for contiguous inputs
        self.run = run
        self.sample = sample
        self.lay = lay

    def laid(self) -> Sample:
        """The sample as it lies when it is asked about."""
        return self._gapped

    def forward(self, device: torch.device) -> None:
        """The operator's result."""

        self.run.reseed()
        call = self._gapped.copy(device)
        got, error = tried(lambda: self._result(call))
        if error is None:  # also where the CPU refuses: who takes more and is right is not wrong
            self._compare(self._result, got, device, "result", self.plain)
            operands_stay(self._gapped, call, device, "a call with gaps")
            if not torch_testing.is_elementwise(self.run.subject.info):
                return
        right, refused = tried(lambda: self._result(self._gapped.copy(CPU)))
        if error is not None:
            same_decision(refused, error, "inputs with gaps")
        elif refused is None:
            for one, other in zip(tensors_of(right), tensors_of(got), strict=True):
                same_strides(one, other)

    def backward(self, device: torch.device) -> None:
        """The gradients of its inputs."""

        def function(call: Call) -> Any:
            return gradients(self.sample, call, self.run.seed, is_watched=True)

        self.run.reseed()
        got, error = tried(lambda: function(self._gapped.copy(device)))
        if error is not None:
            _, refused = tried(lambda: function(self._gapped.copy(CPU)))
            same_decision(refused, error, "backward of inputs with gaps")
        else:
            self._compare(function, got, device, "gradient of input", {})

    def _result(self, call: Call) -> Any:
        given, args, kwargs = call
        with torch.no_grad():
            return self.sample.finished(self.sample.operator(given, *args, **kwargs))

    def _compare(
        self,
        function: Callable[[Call], Any],
        got: Any,
        device: torch.device,
        what: str,
        plain: dict[torch.device, Any],
    ) -> None:
        if device not in plain:
            self.run.reseed()
            plain[device] = function(self.sample.copy(device))
        expected = plain[device]
        agreement = self.run.agreement
        if _only_moves(self.sample, expected):
            agreement = replace(agreement, rtol=0.0, atol=0.0)
        if self.sample.is_random or not values_are_defined(self.sample.operator):
            agreement.check_metadata(expected, got, device, what)
        else:
            varied = self.sample.copy_varied
            agreement.check(expected, got, device, what, lambda vary: function(varied(vary)))

    @cached_property
    def _gapped(self) -> Sample:
        return laid_out(self.sample, self.lay)


def laid_out(sample: Sample, lay: Callable[[torch.Tensor], torch.Tensor]) -> Sample:
    """The sample with inputs as `lay` makes them; raises NotApplicable where it changes none."""
    leaves, structure = pytree.tree_flatten(sample.copy(CPU))
    laid = [lay(leaf) if _is_plain(leaf) else leaf for leaf in leaves]
    if all(map(_is, leaves, laid)):
        raise NotApplicable("no input can have gaps")
    return sample.with_call(pytree.tree_unflatten(laid, structure))


def _tolerance(dtype: torch.dtype | None) -> float:
    """Far from what a wrong address gives: the gaps are NaN."""
    assert dtype is not None
    real = dtype.to_real() if dtype.is_complex else dtype
    return 3e-2 if real.itemsize < 4 else 1e-3


def _only_moves(sample: Sample, result: Any) -> bool:
    """Whether real results hold values of the operands, 0 and 1 alone: nothing was rounded."""
    operands, results = tensors_of(sample.copy(CPU)), tensors_of(result)
    if any(one.layout != torch.strided or one.is_complex() for one in operands + results):
        return False
    given = [one.detach().flatten().double() for one in operands]
    known = torch.cat([torch.tensor([0.0, 1.0]).double(), *given])
    return all(bool(torch.isin(one.detach().cpu().double(), known).all()) for one in results)


def _is(one: object, other: object) -> bool:
    return one is other


def _is_plain(leaf: Any) -> bool:
    return (
        isinstance(leaf, torch.Tensor)
        and leaf.layout == torch.strided
        and not leaf.is_quantized
        and not leaf.is_nested
    )


def with_gaps(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, an offset before and garbage between them; conj and neg bits are kept."""
    if tensor.is_conj():
        return with_gaps(tensor.detach().conj()).conj().requires_grad_(tensor.requires_grad)
    if tensor.is_neg():
        plain = torch._neg_view(tensor.detach())
        return torch._neg_view(with_gaps(plain)).requires_grad_(tensor.requires_grad)
    gapped = strided(tensor.shape, tensor.dtype)
    with torch.no_grad():
        gapped.copy_(tensor)
    return gapped.requires_grad_(tensor.requires_grad)


def reversed_in_memory(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with the first dimension innermost, after an offset of one element."""
    if tensor.dim() < 2 or tensor.is_conj() or tensor.is_neg():
        return tensor
    order = tuple(reversed(range(tensor.dim())))
    buffer = torch.empty(tensor.numel() + 1, dtype=tensor.dtype)[1:]
    laid = buffer.view([tensor.shape[dim] for dim in order]).permute(order)
    with torch.no_grad():
        laid.copy_(tensor)
    return laid.requires_grad_(tensor.requires_grad)


class Degenerate(Property):
    """Inputs without elements or without dimensions: what the CPU does, result or error."""

    name = "degenerate"
    profiles = in_profiles(standard=Dtypes.DEFAULT, full=Dtypes.DEFAULT)

    def check(self, run: Run) -> None:
        """The samples of that kind, and others made from shapes."""
        operator = run.subject.info
        for sample in run.samples():
            if any(leaf.numel() == 0 or leaf.dim() == 0 for leaf in tensors_of(sample.copy(CPU))):
                run.attempt(sample.index, partial(self._sample, run, sample))
            if len(run.failures) >= FAILURES_MAX:
                return
        assert run.dtype is not None
        for call in _calls(operator, run.dtype):
            run.attempt(-1, partial(self._generated, run, call))
            if len(run.failures) >= FAILURES_MAX:
                return

    def _sample(self, run: Run, sample: Sample, device: torch.device) -> None:
        self._compare(
            run, lambda where: sample.finished(sample.run(where)), sample.is_random, device
        )

    def _generated(self, run: Run, call: Call, device: torch.device) -> None:
        def result(where: torch.device) -> Any:
            given, args, kwargs = Transfer(where)(call)
            return run.subject.info(given, *args, **kwargs)

        self._compare(run, result, False, device)

    @staticmethod
    def _compare(
        run: Run, result: Callable[[torch.device], Any], is_random: bool, device: torch.device
    ) -> None:
        run.reseed()
        expected, refused = tried(lambda: result(CPU))
        run.reseed()
        got, error = tried(lambda: result(device))
        same_decision(refused, error, "the call")
        if error is not None:
            return
        if is_random or not values_are_defined(run.subject.info):
            run.agreement.check_metadata(expected, got, device)
        else:
            run.agreement.check(expected, got, device)


EMPTY: tuple[tuple[int, ...], ...] = ((0,), (0, 3), (3, 0), (2, 0, 3))


def _calls(operator: Any, dtype: torch.dtype) -> Iterator[Call]:
    """Calls of elementwise operators and reductions, made from shapes."""
    kind = torch_testing.shape_rule(operator)
    if kind == "unary":
        for shape in ((), *EMPTY):
            yield _ones(dtype, shape), (), {}
    elif kind == "binary":
        pairs = [((), ()), ((), (2,)), ((2,), ()), ((0,), ()), ((), (0,)), ((3, 0), (1, 0))]
        pairs += [((0,), (1,)), ((2, 0, 3), (3,)), ((0,), (2,)), ((2, 0), (0, 2))]
        for one, other in pairs:
            yield _ones(dtype, one), (_ones(dtype, other),), {}
    elif kind == "reduction":
        for shape in ((), *EMPTY):
            yield _ones(dtype, shape), (), {}
            for dim in {0, -1, len(shape) - 1, len(shape)}:
                yield _ones(dtype, shape), (), {"dim": dim}
                yield _ones(dtype, shape), (), {"dim": dim, "keepdim": True}


def _ones(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Ones: in the domain of every operator."""
    return torch.ones(shape, dtype=dtype)


PROPERTIES = [NonContiguous, Degenerate]
