# SPDX-License-Identifier: BSD-3-Clause
"""NaN, infinities and signed zeros through the functions for which C and IEEE 754 define them.

torch's samples are ordinary numbers: a kernel that loses the sign of a zero, or a NaN, passes on
them. Subnormal numbers are left out: a device may flush them.
"""

from functools import partial
from math import inf, nan

import torch

from npusim_conformance.backend.device import CPU
from npusim_conformance.inputs.subjects import Subject
from npusim_conformance.judge.agreement import same_bits
from npusim_conformance.properties.base import Dtypes, Property, Run, in_profiles
from npusim_conformance.verdict import Mismatch

DEFINED = frozenset(
    """abs acos acosh asin asinh atan atanh ceil cos cosh deg2rad erf exp exp2 expm1 floor log
    log10 log1p log2 neg positive rad2deg reciprocal rsqrt sigmoid sign sin sinh sqrt square tan
    tanh trunc frac round nn.functional.relu""".split()
)
VALUES = (0.0, -0.0, inf, -inf, nan, 1.0, -1.0, 0.5, -0.5, 2.5, -2.5, 100.0, -100.0)
COUNT = 41  # more than a vector of any width, and a rest


class SpecialValues(Property):
    """NaN, infinities and signed zeros come out where they do on the CPU."""

    name = "special_values"
    profiles = in_profiles(standard=Dtypes.ALL, full=Dtypes.ALL)

    def dtypes(self, subject: Subject, policy: Dtypes) -> list[torch.dtype | None]:
        """Dtypes that have them."""
        return [
            dtype
            for dtype in super().dtypes(subject, policy)
            if dtype is not None and dtype.is_floating_point
        ]

    def subjects(self) -> dict[str, Subject]:
        """Functions of one number whose special values are defined."""
        return {name: one for name, one in super().subjects().items() if name in DEFINED}

    def check(self, run: Run) -> None:
        """One value at a time in a vector, so that no lane hides another."""
        for number, value in enumerate(VALUES):
            run.attempt(number, partial(self._examine, run, value))

    @staticmethod
    def _examine(run: Run, value: float, device: torch.device) -> None:
        here = torch.full((COUNT,), value, dtype=run.dtype)
        expected, got = run.subject.info(here), run.subject.info(here.to(device)).to(CPU)
        what = f"{run.subject.name} of {value}"
        for kind in (torch.isnan, torch.isinf):
            if not torch.equal(kind(expected), kind(got)):
                raise Mismatch(f"{what}: {_shown(got)}, on the CPU {_shown(expected)}")
        zeros = expected == 0
        if torch.equal(zeros, got == 0) and not same_bits(expected[zeros], got[zeros]):
            raise Mismatch(f"{what}: {_shown(got)}, on the CPU {_shown(expected)}")
        run.agreement.check(expected, got, CPU, what)


def _shown(values: torch.Tensor) -> str:
    """The first value; all are equal on a device without defects."""
    distinct = list(dict.fromkeys(str(value) for value in values.tolist()))
    return " and ".join(distinct[:3])


PROPERTIES = [SpecialValues]
