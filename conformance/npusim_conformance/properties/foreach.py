# SPDX-License-Identifier: BSD-3-Clause
"""torch._foreach_*: one call for a list of tensors gives what one call for each of them gives."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from npusim_conformance.backend.device import CPU
from npusim_conformance.inputs.samples import Call, Sample
from npusim_conformance.inputs.subjects import Subject
from npusim_conformance.judge.agreement import Agreement
from npusim_conformance.properties.base import Dtypes, Run, in_profiles, require
from npusim_conformance.properties.calls import (
    Examine,
    PartedProperty,
    call_of,
    same_decision,
    storage_of,
    tried,
)
from npusim_conformance.verdict import NotApplicable

MANY = 131  # tensors; a launch takes the arguments of up to 110, as CUDA's does


class ForeachForward(PartedProperty):
    """The results are the CPU's, and those of a loop over the tensors on the same device."""

    name = "forward"
    kind = "foreach"
    profiles = in_profiles(standard=Dtypes.DEFAULT, full=Dtypes.ALL)

    def applies(self, subject: Subject, dtype: torch.dtype | None) -> str:
        """Not for those that exist in place only."""
        return "" if subject.info.supports_out else "there is no such function, only in place"

    def parts(self, run: Run, sample: Sample) -> Iterator[Examine]:
        """With the sizes of the database, all different, and with empty tensors among them."""
        for variant in (sample, _with_gaps(sample)):
            yield partial(self._compare, run, variant)

    @staticmethod
    def _compare(run: Run, sample: Sample, device: torch.device) -> None:
        got = _compare_lists(run, sample, device)
        looped, _ = tried(lambda: _loop(sample.operator.ref, sample.copy(device)))
        if looped is not None:  # a loop may know fewer kinds of operands
            in_loop = Agreement(run.agreement.bitwise, where="in a loop over the tensors")
            in_loop.check(looped, got, device)


def _compare_lists(run: Run, sample: Sample, device: torch.device) -> list[torch.Tensor]:
    """The results there, which must be the CPU's."""
    function = sample.operator.op
    expected, refused = tried(lambda: call_of(sample, function, sample.copy(CPU)))
    got, error = tried(lambda: call_of(sample, function, sample.copy(device)))
    same_decision(refused, error, "the list")
    if refused is not None:
        raise NotApplicable("the CPU refuses these operands")
    run.agreement.check(list(expected), list(got), device)
    return list(got)


class ForeachInplace(PartedProperty):
    """In place: the tensors hold what the CPU's hold afterwards, and lie where they lay."""

    name = "inplace"
    kind = "foreach"
    profiles = in_profiles(standard=Dtypes.DEFAULT, full=Dtypes.ALL)

    def applies(self, subject: Subject, dtype: torch.dtype | None) -> str:
        """Only those that there are in place."""
        return "" if subject.info.inplace_variant else "there is no such function in place"

    def parts(self, run: Run, sample: Sample) -> Iterator[Examine]:
        """With the sizes of the database, all different, and with empty tensors among them."""
        for variant in (sample, _with_gaps(sample)):
            yield partial(self._compare, run, variant)

    @staticmethod
    def _compare(run: Run, sample: Sample, device: torch.device) -> None:
        function = sample.operator.inplace_variant
        host, there = sample.copy(CPU), sample.copy(device)
        storages = [storage_of(tensor) for tensor in there[0]]
        versions = [tensor._version for tensor in there[0]]
        _, refused = tried(lambda: call_of(sample, function, host))
        _, error = tried(lambda: call_of(sample, function, there))
        same_decision(refused, error, "the list in place")
        if refused is not None:
            raise NotApplicable("the CPU refuses these operands")
        run.agreement.check(list(host[0]), list(there[0]), device)
        for number, tensor in enumerate(there[0]):
            require(storage_of(tensor) == storages[number], f"tensor {number} got another storage")
            require(tensor._version > versions[number], f"the version of tensor {number} stays")


class ForeachMany(PartedProperty):
    """Lists longer than one launch takes are done to their ends; in place, beside empty tensors."""

    name = "many"
    kind = "foreach"
    profiles = in_profiles(smoke=Dtypes.DEFAULT, standard=Dtypes.DEFAULT, full=Dtypes.DEFAULT)

    def parts(self, run: Run, sample: Sample) -> Iterator[Examine]:
        """One sample, repeated; with scalars in a list, another."""
        if sample.index > 1:
            return
        long = _repeated(sample)
        if sample.operator.supports_out:
            yield partial(self._compare_many, run, long)
        if sample.operator.inplace_variant:
            yield partial(ForeachInplace._compare, run, _with_gaps(long))

    @staticmethod
    def _compare_many(run: Run, sample: Sample, device: torch.device) -> None:
        _compare_lists(run, sample, device)


def _repeated(sample: Sample) -> Sample:
    """The sample with all of its lists as long as MANY."""

    def longer(leaf: Any) -> Any:
        if not isinstance(leaf, (list, tuple)) or len(leaf) != len(sample.raw.input):
            return leaf
        rest = leaf[-1:] * (MANY - len(leaf))
        return [*leaf, *(one.clone() if isinstance(one, torch.Tensor) else one for one in rest)]

    raw = sample.raw
    kwargs = {name: longer(leaf) for name, leaf in raw.kwargs.items()}
    return sample.with_call((longer(raw.input), tuple(map(longer, raw.args)), kwargs))


def _with_gaps(sample: Sample) -> Sample:
    """The sample with every third tensor of all lists replaced by an empty one."""

    def thin(leaf: Any) -> Any:
        if not isinstance(leaf, (list, tuple)) or not isinstance(leaf[0], torch.Tensor):
            return leaf
        return [
            tensor.new_empty((0,) * max(1, tensor.dim())) if number % 3 == 0 else tensor
            for number, tensor in enumerate(leaf)
        ]

    raw = sample.raw
    args = tuple(thin(leaf) for leaf in raw.args)
    return sample.with_call((thin(raw.input), args, dict(raw.kwargs)))


def _loop(function: Callable[..., Any], call: Call) -> list[torch.Tensor]:
    """One call for each tensor."""
    tensors, args, kwargs = call
    scalars = kwargs.pop("scalars", None)
    results = []
    with torch.no_grad():
        for number, tensor in enumerate(tensors):
            own = [leaf[number] if isinstance(leaf, (list, tuple)) else leaf for leaf in args]
            more = dict(kwargs) if scalars is None else {**kwargs, "value": scalars[number]}
            results.append(function(tensor, *own, **more))
    return results


PROPERTIES = [ForeachForward, ForeachInplace, ForeachMany]
