# SPDX-License-Identifier: BSD-3-Clause
"""The value of an operator against numpy or scipy, where torch's database names a counterpart.

An oracle that shares no code with torch: what is wrong on the CPU too shows here, as upstream.
"""

import importlib.util
from typing import Any

import numpy
import torch
from torch.utils import _pytree as pytree

from npusim_conformance.inputs.samples import Sample
from npusim_conformance.inputs.subjects import Subject
from npusim_conformance.judge.agreement import Agreement
from npusim_conformance.properties.base import (
    Dtypes,
    Run,
    SampleProperty,
    in_profiles,
    values_are_defined,
)
from npusim_conformance.verdict import Mismatch, NotApplicable

# As wide as numpy computes by default; of narrower ones both round, each in its own way.
DTYPES = (torch.float64, torch.int64, torch.complex128)


class NumpyReference(SampleProperty):
    """The result is that of the operator's counterpart in numpy or scipy."""

    name = "numpy"
    profiles = in_profiles(standard=Dtypes.ALL, full=Dtypes.ALL)

    def dtypes(self, subject: Subject, policy: Dtypes) -> list[torch.dtype | None]:
        """The wide dtypes only."""
        return [dtype for dtype in super().dtypes(subject, policy) if dtype in DTYPES]

    def applies(self, subject: Subject, dtype: torch.dtype | None) -> str:
        """Operators with a counterpart."""
        if subject.info.ref is None:
            scipy = importlib.util.find_spec("scipy") is not None
            return "no counterpart in numpy" + ("" if scipy else "; scipy is not installed")
        return "" if values_are_defined(subject.info) else "the result is uninitialised memory"

    def examine(self, run: Run, sample: Sample, device: torch.device) -> None:
        """Both compute in numpy's default dtype, also from integers."""
        torch.set_default_dtype(torch.float64)
        try:
            wanted = _reference(sample)
            got = sample.run(device)
        finally:
            torch.set_default_dtype(torch.float32)
        expected, results = pytree.tree_leaves(wanted), pytree.tree_leaves(got)
        if len(expected) != len(results):
            raise Mismatch(f"{len(results)} results, {len(expected)} in numpy")
        agreement = Agreement(False, run.agreement.rtol, run.agreement.atol, where="in numpy")
        for number, (one, other) in enumerate(zip(expected, results, strict=True)):
            if isinstance(other, torch.Tensor):
                one = torch.as_tensor(numpy.array(one)).to(other.dtype)
            elif isinstance(one, numpy.generic):
                one = one.item()
            agreement.check(one, other, device, f"result {number}")


def _reference(sample: Sample) -> Any:
    """The counterpart's result. Some counterparts take fewer arguments than the operator."""
    given, args, kwargs = pytree.tree_map(_to_numpy, sample.copy(torch.device("cpu")))
    _rename(sample.subject, kwargs)
    try:
        with numpy.errstate(all="ignore"):
            return sample.operator.ref(given, *args, **kwargs)
    except Exception as error:
        text = (str(error).splitlines() or [""])[0]
        raise NotApplicable(f"the counterpart refuses: {type(error).__name__}: {text}") from None


def _rename(subject: Subject, kwargs: dict[str, Any]) -> None:
    """Arguments with another name or default in numpy."""
    if subject.family == "fft":
        transforms_several = subject.name[-1] in "2n"
        if "dim" in kwargs:
            axis = kwargs.pop("dim")
            if transforms_several:
                kwargs["axes"] = (axis,) if isinstance(axis, int) else axis
            else:
                kwargs["axis"] = axis
        elif subject.name.endswith("2"):
            kwargs["axes"] = (-2, -1)
    elif subject.name in ("var", "std") and not kwargs.keys() & {"correction", "unbiased"}:
        kwargs["correction"] = 1


def _to_numpy(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.resolve_conj().resolve_neg().numpy()
    return torch.empty(0, dtype=leaf).numpy().dtype if isinstance(leaf, torch.dtype) else leaf


PROPERTIES = [NumpyReference]
