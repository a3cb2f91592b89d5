# SPDX-License-Identifier: BSD-3-Clause
"""out=: where results are written to, resized, and refused."""

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from npusim_conformance.backend.device import CPU
from npusim_conformance.inputs.samples import Sample
from npusim_conformance.inputs.subjects import Subject
from npusim_conformance.inputs.transfer import Transfer, tensors_of
from npusim_conformance.properties.base import Dtypes, Run, in_profiles, require, values_are_defined
from npusim_conformance.properties.calls import (
    Examine,
    Part,
    PartedProperty,
    are_plain,
    call_of,
    dense,
    operands_stay,
    same_decision,
    strided,
    takes_no_out,
    tried,
)
from npusim_conformance.verdict import NotApplicable

RESIZED = "An output with one or more elements was resized"
# out= may lie elsewhere: lu() copies into it, the others only read numbers from their inputs.
OUT_ANYWHERE = frozenset({"lu", "linspace.tensor_overload", "logspace.tensor_overload"})
# Of so many samples it is asked what is refused; the answers depend on the operator, not on values.
REFUSALS_MAX = 3

Make = Callable[[torch.Size, torch.dtype], torch.Tensor]


class Out(PartedProperty):
    """out= gets the result in place, keeps its memory and strides, and is refused where it must."""

    name = "out"
    profiles = in_profiles(
        smoke=Dtypes.DEFAULT, standard=Dtypes.DEFAULT_AND_COMPLEX, full=Dtypes.ALL
    )
    where = "without out="

    def applies(self, subject: Subject, dtype: torch.dtype | None) -> str:
        """Operators with out=."""
        return "" if subject.info.supports_out else "the operator has no out="

    def parts(self, run: Run, sample: Sample) -> Iterator[Examine]:
        """Where the result is written first, then what is refused."""
        into = _Into(run, sample)
        if not into.is_accepted():
            return
        yield Part(partial(into.fitting, dense, "a fitting out="), "torch.empty_like(result)")
        yield Part(
            partial(into.fitting, strided, "a strided out="),
            "torch.empty(*result.shape, 2, dtype=result.dtype, device=device)[..., 0]",
        )
        yield Part(into.empty, "torch.empty(0, dtype=result.dtype, device=device)")
        if sample.index and run.executed > 6 * REFUSALS_MAX:
            return
        for reshaped, size in ((_longer, "result.numel() + 1"), (_split, "1, *result.shape")):
            yield Part(
                partial(into.of_another_shape, reshaped),
                f"torch.empty({size}, dtype=result.dtype, device=device)",
            )
        for other in (_wider, _narrower):
            to = other(into.dtype)
            yield Part(
                partial(into.of_another_dtype, other), f"torch.empty_like(result, dtype={to})"
            )
        if sample.operator.supports_autograd:
            yield Part(into.with_gradient, "torch.empty_like(result).requires_grad_()")


class OutElsewhere(PartedProperty):
    """out= in the memory of the host, or of another device, is refused."""

    name = "out_elsewhere"
    profiles = in_profiles(standard=Dtypes.DEFAULT, full=Dtypes.DEFAULT)

    def applies(self, subject: Subject, dtype: torch.dtype | None) -> str:
        """Operators with out= that do not copy into it."""
        if subject.name in OUT_ANYWHERE:
            return "the result is copied into out=, wherever it lies"
        return "" if subject.info.supports_out else "the operator has no out="

    def parts(self, run: Run, sample: Sample) -> Iterator[Examine]:
        """On the host, then on the second device."""
        into = _Into(run, sample)
        if run.executed >= 2 * REFUSALS_MAX or not into.is_accepted():
            return
        for elsewhere in (CPU, run.under_test.second):
            yield Part(
                partial(into.on_another_device, elsewhere),
                f'torch.empty_like(result, device="{elsewhere}")',
            )


class _Into:
    """One sample, run with out= in several ways."""

    def __init__(self, run: Run, sample: Sample) -> None:
        self.run = run
        self.sample = sample
        self._results: dict[torch.device, Any] = {}

    def is_accepted(self) -> bool:
        """Whether this form of the call takes out= at all; not every one does."""
        _, error = tried(lambda: self._call(CPU, self._outs(CPU, dense)))
        return error is None or not (isinstance(error, NotApplicable) or takes_no_out(error))

    @property
    def dtype(self) -> torch.dtype:
        """Of the first result."""
        return tensors_of(self._functional(CPU))[0].dtype

    def fitting(self, make: Make, what: str, device: torch.device) -> None:
        """The right shape, full of garbage: memory and strides stay, every element is written."""
        outs = self._outs(device, make)
        before = [_place(out) for out in outs]
        self._compare(self._call(device, outs), outs, device, what)
        for out, (storage, address, strides) in zip(outs, before, strict=True):
            now = _place(out)
            require(now[0] == storage, f"{what} got another storage")
            require(now[1] == address, f"{what} got other memory: data_ptr() has changed")
            require(now[2] == strides, f"{what} has strides {now[2]}, had {strides}")

    def empty(self, device: torch.device) -> None:
        """No elements: resized in silence."""
        outs = self._outs(device, lambda shape, dtype: dense(torch.Size([0]), dtype))
        self._compare(self._call(device, outs), outs, device, "an empty out=")

    def of_another_shape(
        self, reshaped: Callable[[torch.Size], torch.Size], device: torch.device
    ) -> None:
        """Resized with a warning, if the CPU does so."""
        _, refused, warned = self._reshape(reshaped, CPU)
        got, error, complained = self._reshape(reshaped, device)
        what = "out= of another shape"
        same_decision(refused, error, what)
        if error is not None:
            return
        outs, results = got
        require(complained == warned, f"{what}: warning {complained}, on the CPU {warned}")
        self._compare(results, outs, device, what)

    def on_another_device(self, elsewhere: torch.device | None, device: torch.device) -> None:
        """Memory of the host, or of another device, is no place for a result."""
        if device.type == "cpu" or elsewhere is None or not tensors_of(self.sample.copy(CPU)):
            raise NotApplicable("nothing says where the result should be but out= itself")
        move = Transfer(elsewhere)
        outs = [move(out) for out in self._outs(CPU, dense)]
        _, error = tried(lambda: self._call(device, outs))
        what = f"out= on {elsewhere} for inputs on {device}"
        require(error is not None, f"{what}: accepted, RuntimeError expected")
        same_decision(RuntimeError("expected all tensors to be on one device"), error, what)

    def of_another_dtype(
        self, other: Callable[[torch.dtype], torch.dtype], device: torch.device
    ) -> None:
        """Cast, or refused, as the CPU does."""
        what = f"out= of a dtype that is {other.__name__.strip('_')}"
        _, refused = tried(lambda: self._cast(other, CPU))
        results, error = tried(lambda: self._cast(other, device))
        same_decision(refused, error, what)
        expected = self._functional(device)
        if error is not None or other is not _wider or not self._has_values:
            return
        if isinstance(expected, torch.Tensor) and (
            expected.is_floating_point() or expected.is_complex()
        ):
            self._agree(expected, results.to(expected.dtype), device, what)

    def with_gradient(self, device: torch.device) -> None:
        """Autograd does not go through out=."""
        outs = self._outs(device, dense)
        if not all(out.is_floating_point() or out.is_complex() for out in outs):
            raise NotApplicable("no result with a gradient")
        for out in outs:
            out.requires_grad_()
        given, args, kwargs = self.sample.copy(device)
        target = self._target(device, outs)
        _, error = tried(lambda: self.sample.operator(given, *args, **kwargs, out=target))
        what = "out= that requires a gradient"
        require(error is not None, f"{what}: accepted, RuntimeError expected")
        same_decision(RuntimeError("no automatic differentiation"), error, what)

    @property
    def _has_values(self) -> bool:
        return not self.sample.is_random and values_are_defined(self.sample.operator)

    def _functional(self, device: torch.device) -> Any:
        """The result without out=, once per device."""
        if device not in self._results:
            call = self.sample.copy(device)
            result = call_of(self.sample, self.sample.operator, call)
            if not are_plain(result):
                raise NotApplicable("the results are no strided tensors")
            self._results[device] = result
        return self._results[device]

    def _outs(self, device: torch.device, make: Make) -> list[torch.Tensor]:
        move = Transfer(device)
        return [move(make(one.shape, one.dtype)) for one in tensors_of(self._functional(device))]

    def _target(self, device: torch.device, outs: list[torch.Tensor]) -> Any:
        is_one = isinstance(self._functional(device), torch.Tensor)
        return outs[0] if is_one else tuple(outs)

    def _call(self, device: torch.device, outs: list[torch.Tensor]) -> Any:
        target = self._target(device, outs)
        call = self.sample.copy(device)
        results = call_of(self.sample, self.sample.operator, call, out=target)
        operands_stay(self.sample, call, device, "a call with out=")
        return target if results is None else results  # lists of results are not returned again

    def _compare(
        self, results: Any, outs: list[torch.Tensor], device: torch.device, what: str
    ) -> None:
        returned = tensors_of(results)
        same = len(returned) == len(outs) and all(map(_is, returned, outs))
        require(same, f"{what}: what is returned is not out=")
        self._agree(self._functional(device), results, device, what)

    def _agree(self, expected: Any, got: Any, device: torch.device, what: str) -> None:
        if self._has_values:
            finish = self._finished
            self.run.agreement.check(
                finish(expected),
                finish(got),
                device,
                what,
                lambda vary: finish(self.sample.run_varied(vary)),
            )
        else:
            self.run.agreement.check_metadata(expected, got, device, what)

    def _finished(self, results: Any) -> Any:
        """Results without ambiguity; they lie in rows, for its removal may round by strides."""
        rows = pytree.tree_map_only(torch.Tensor, torch.Tensor.contiguous, results)
        return self.sample.finished(rows)

    def _reshape(
        self, reshaped: Callable[[torch.Size], torch.Size], device: torch.device
    ) -> tuple[Any, Exception | None, bool]:
        outs = self._outs(device, lambda shape, dtype: dense(reshaped(shape), dtype))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            results, error = tried(lambda: self._call(device, outs))
        warned = any(RESIZED in str(warning.message) for warning in caught)
        return (outs, results), error, warned

    def _cast(self, other: Callable[[torch.dtype], torch.dtype], device: torch.device) -> Any:
        outs = self._outs(device, lambda shape, dtype: dense(shape, other(dtype)))
        return self._call(device, outs)


def _is(one: object, other: object) -> bool:
    return one is other


def _place(tensor: torch.Tensor) -> tuple[int, int, tuple[int, ...]]:
    return tensor.untyped_storage()._cdata, tensor.data_ptr(), tensor.stride()


def _longer(shape: torch.Size) -> torch.Size:
    return torch.Size([*shape[:-1], shape[-1] + 1]) if shape else torch.Size([2])


def _split(shape: torch.Size) -> torch.Size:
    """Another shape of as many elements."""
    return torch.Size([1, *shape])


def _wider(dtype: torch.dtype) -> torch.dtype:
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else torch.complex64


def _narrower(dtype: torch.dtype) -> torch.dtype:
    if dtype.is_complex:
        return torch.float32
    return torch.int64 if dtype.is_floating_point else torch.bool


PROPERTIES = [Out, OutElsewhere]
