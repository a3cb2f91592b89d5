# SPDX-License-Identifier: BSD-3-Clause
"""Tensors whose conj or neg bit is set: the same numbers, stored otherwise."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from npusim_conformance.inputs.samples import Call, Sample
from npusim_conformance.inputs.subjects import Subject
from npusim_conformance.inputs.transfer import tensors_of
from npusim_conformance.properties.base import Dtypes, Run, in_profiles, values_are_defined
from npusim_conformance.properties.calls import (
    LAYOUT_DEFINED,
    Examine,
    PartedProperty,
    are_plain,
    call_of,
    same_decision,
    tried,
)
from npusim_conformance.verdict import NotApplicable

View = Callable[[torch.Tensor], torch.Tensor]


def conj_view(tensor: torch.Tensor) -> torch.Tensor:
    """Equal to `tensor`, with the conj bit set."""
    return tensor.conj_physical().conj() if tensor.is_complex() else tensor


def neg_view(tensor: torch.Tensor) -> torch.Tensor:
    """Equal to `tensor`, with the neg bit set."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor
    return torch._neg_view(tensor.neg())


def neg_conj_view(tensor: torch.Tensor) -> torch.Tensor:
    """Equal to `tensor`, with both bits set."""
    return neg_view(conj_view(tensor)) if tensor.is_complex() else tensor


class MathBits(PartedProperty):
    """Views with the conj bit, the neg bit or both give what plain tensors give."""

    name = "math_bits"
    profiles = in_profiles(standard=Dtypes.DEFAULT, full=Dtypes.ALL)
    where = "for tensors without these bits"

    def dtypes(self, subject: Subject, policy: Dtypes) -> list[torch.dtype | None]:
        """Floating and complex ones; the first of each kind stands for the others."""
        supported = subject.dtypes()
        real = [dtype for dtype in supported if dtype.is_floating_point and dtype.itemsize > 1]
        complexes = [dtype for dtype in supported if dtype.is_complex]
        if policy is Dtypes.ALL:
            return [*real, *complexes]
        return [*real[:1], *complexes[:1]]

    def applies(self, subject: Subject, dtype: torch.dtype | None) -> str:
        """Operators that look at values, not at memory."""
        is_defined = subject.name in LAYOUT_DEFINED
        return "the result is defined by how the input lies in memory" if is_defined else ""

    def parts(self, run: Run, sample: Sample) -> Iterator[Examine]:
        """Each bit; then in place, where only the memory behind the view may change."""
        operator = sample.operator
        assert run.dtype is not None
        views: list[View] = [neg_view] if operator.test_neg_view else []
        if run.dtype.is_complex and operator.test_conjugated_samples:
            views += [conj_view, neg_conj_view] if operator.test_neg_view else [conj_view]
        for view in views:
            yield partial(self._functional, run, sample, view)
            if operator.inplace_variant is not None:
                yield partial(self._in_place, run, sample, view)

    def _functional(self, run: Run, sample: Sample, view: View, device: torch.device) -> None:
        def result(call: Call) -> Any:
            return call_of(sample, sample.operator, call)

        self._compare(run, sample, view, result, device, f"result for {_name(view)}")

    def _in_place(self, run: Run, sample: Sample, view: View, device: torch.device) -> None:
        def result(call: Call) -> Any:
            return call_of(sample, sample.operator.inplace_variant, call)

        self._compare(run, sample, view, result, device, f"in place on {_name(view)}")

    @staticmethod
    def _compare(
        run: Run,
        sample: Sample,
        view: View,
        function: Callable[[Call], Any],
        device: torch.device,
        what: str,
    ) -> None:
        plain, viewed = sample.copy(device), _viewed(sample.copy(device), view)
        expected, refused = tried(lambda: function(plain))
        got, error = tried(lambda: function(viewed))
        if refused is not None:
            raise NotApplicable("the call is refused for plain tensors, too")
        same_decision(None, error, what)
        if sample.is_random or not values_are_defined(sample.operator):
            run.agreement.check_metadata(expected, got, device, what)
            return
        finish = sample.finished
        run.agreement.check(
            finish(expected),
            finish(got),
            device,
            what,
            lambda vary: finish(sample.run_varied(vary)),
        )


def _viewed(call: Call, view: View) -> Call:
    if not are_plain(call):
        raise NotApplicable("sparse and quantized tensors have no such bits")
    with torch.no_grad():
        viewed: Call = pytree.tree_map_only(torch.Tensor, view, call)
    changed = zip(tensors_of(call), tensors_of(viewed), strict=True)
    if all(one is other for one, other in changed):
        raise NotApplicable("no input can have the bit")
    return viewed


def _name(view: View) -> str:
    return f"a {view.__name__.replace('_', ' ')}".replace("neg conj", "neg and conj")


PROPERTIES = [MathBits]
