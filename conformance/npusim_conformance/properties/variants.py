# SPDX-License-Identifier: BSD-3-Clause
"""The other ways to call an operator: in place, as a method, by an alias, as +, - and so on."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from npusim_conformance.backend.device import CPU
from npusim_conformance.inputs.samples import Call, Sample
from npusim_conformance.inputs.subjects import Subject
from npusim_conformance.inputs.transfer import tensors_of
from npusim_conformance.judge.agreement import plain, same_bits
from npusim_conformance.properties.base import Dtypes, Run, in_profiles, values_are_defined
from npusim_conformance.properties.calls import (
    Examine,
    PartedProperty,
    are_plain,
    call_of,
    same_decision,
    storage_of,
    tried,
)
from npusim_conformance.properties.layouts import reversed_in_memory
from npusim_conformance.verdict import Mismatch, NotApplicable

# Aliases and operators lead to the same kernels as the first form; a few samples say all.
SAMPLES_OF_OTHERS = 3

Form = tuple[str, Callable[..., Any]]


class InPlace(PartedProperty):
    """In place gives the function's values in the same memory, and is refused where it must be."""

    name = "inplace"
    profiles = in_profiles(
        smoke=Dtypes.DEFAULT, standard=Dtypes.DEFAULT_AND_COMPLEX, full=Dtypes.ALL
    )
    where = "by the function"

    def applies(self, subject: Subject, dtype: torch.dtype | None) -> str:
        """Operators that can be done in place."""
        return "" if _in_place_forms(subject.info) else "the operator has no in-place form"

    def parts(self, run: Run, sample: Sample) -> Iterator[Examine]:
        """Each form."""
        few = run.executed < SAMPLES_OF_OTHERS
        forms = _in_place_forms(sample.operator)
        for number, form in enumerate(forms):
            if number == 0 or few:
                yield partial(self._examine, run, sample, form)
        if isinstance(sample.raw.input, torch.Tensor) and sample.raw.input.dim() > 1:
            yield partial(self._examine, run, _reversed(sample), forms[0])

    def _examine(self, run: Run, sample: Sample, form: Form, device: torch.device) -> None:
        name, function = form
        given, *rest = sample.copy(device)
        if not are_plain(given) or not isinstance(given, torch.Tensor):
            raise NotApplicable("the input is no strided tensor")
        kept, refused = tried(lambda: _in_place(sample, function, sample.copy(CPU)))
        keeps, error = tried(lambda: _in_place(sample, function, (given, *rest)))  # type: ignore[arg-type]
        same_decision(refused, error, name)
        if error is not None:
            return
        for fact in sorted(kept - keeps):
            raise Mismatch(f"{name} {fact}; on the CPU it does not")
        got = given
        expected = call_of(sample, sample.operator, sample.copy(device))
        _compare(run, sample, expected.to(got.dtype), got, device, name)


class Method(PartedProperty):
    """The method, the aliases and the arithmetic signs do what the function does."""

    name = "method"
    profiles = in_profiles(standard=Dtypes.DEFAULT, full=Dtypes.DEFAULT)
    where = "by the function"

    def applies(self, subject: Subject, dtype: torch.dtype | None) -> str:
        """Operators with another form."""
        return "" if _other_forms(subject.info) else "the operator has one form only"

    def parts(self, run: Run, sample: Sample) -> Iterator[Examine]:
        """Each form, for a few samples."""
        forms = _other_forms(sample.operator)
        if run.executed < SAMPLES_OF_OTHERS * len(forms):
            for form in forms:
                yield partial(self._examine, run, sample, form)

    def _examine(self, run: Run, sample: Sample, form: Form, device: torch.device) -> None:
        name, function = form
        call = sample.copy(device)
        if not isinstance(call[0], torch.Tensor):
            raise NotApplicable("the input is no tensor, so it has no methods")
        _, refused = tried(lambda: call_of(sample, function, sample.copy(CPU)))
        got, error = tried(lambda: call_of(sample, function, call))
        same_decision(refused, error, name)
        if error is None:
            expected = call_of(sample, sample.operator, sample.copy(device))
            _compare(run, sample, expected, got, device, name)


def _reversed(sample: Sample) -> Sample:
    """The sample with its input's first dimension innermost in memory."""
    given, *rest = sample.copy(CPU)
    return sample.with_call((reversed_in_memory(given), *rest))  # type: ignore[arg-type]


def _in_place(sample: Sample, function: Callable[..., Any], call: Call) -> set[str]:
    """Calls `function` and tells what it did not do to its input."""
    given, *others = call
    storage, address, version = storage_of(given), given.data_ptr(), given._version
    operands = [tensor for tensor in tensors_of(others) if are_plain(tensor)]
    before = [plain(tensor.clone()) for tensor in operands]
    returned = call_of(sample, function, call)
    facts = {
        "returns another tensor than its input": returned is given,
        "gives its input another storage": storage_of(given) == storage,
        "gives its input other memory": given.data_ptr() == address,
        "leaves the version counter as it was": given._version > version,
        "writes to another operand": all(map(same_bits, before, map(plain, operands))),
    }
    return {fact for fact, did_not in facts.items() if did_not}


def _in_place_forms(operator: Any) -> list[Form]:
    forms = [("in place", operator.inplace_variant)]
    forms.append(("in place by sign", operator.inplace_operator_variant))
    forms += [(f"{alias.name}_", alias.inplace_variant) for alias in operator.aliases]
    return [(name, function) for name, function in forms if function is not None]


def _other_forms(operator: Any) -> list[Form]:
    forms = [("the method", operator.method_variant), ("the sign", operator.operator_variant)]
    for alias in operator.aliases:
        forms += [(alias.name, alias.op), (f"the method {alias.name}", alias.method_variant)]
    return [(name, function) for name, function in forms if function is not None]


def _compare(
    run: Run, sample: Sample, expected: Any, got: Any, device: torch.device, name: str
) -> None:
    if sample.is_random or not values_are_defined(sample.operator):
        run.agreement.check_metadata(expected, got, device, name)
        return
    finish = sample.finished
    run.agreement.check(
        finish(expected), finish(got), device, name, lambda vary: finish(sample.run_varied(vary))
    )


PROPERTIES = [InPlace, Method]
