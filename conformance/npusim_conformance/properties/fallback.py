# SPDX-License-Identifier: BSD-3-Clause
"""Whether the device computed an operator, or the CPU did in its place.

The backend tells by a hook that its expectations file names, or by a warning as torch's own
backends give; from silence nothing follows.
"""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from npusim_conformance.inputs.samples import Sample
from npusim_conformance.properties.base import Dtypes, Run, SampleProperty, in_profiles
from npusim_conformance.verdict import Mismatch, NotApplicable

_WARNING = re.compile(r"(?i)fall\w*[ -]?back")
_OVERLOAD = re.compile(r"\b[a-z]\w*::\w+(?:\.\w+)?")


class Fallback(SampleProperty):
    """The device computes the operator itself, where its backend declares so.

    An operator that fell back without such a declaration passes as fallback-pass.
    """

    name = "fallback"
    profiles = in_profiles(standard=Dtypes.DEFAULT, full=Dtypes.DEFAULT)
    few = 10

    def check(self, run: Run) -> None:
        """Looks at a few samples."""
        if run.under_test.is_cpu:
            raise NotApplicable("the device is the CPU")
        super().check(run)
        if not (run.under_test.knows_fallbacks or run.fallbacks or run.failures):
            raise NotApplicable("unknown: the backend names no fallback_hook and gave no warning")

    def examine(self, run: Run, sample: Sample, device: torch.device) -> None:
        """Counts what falls back during the call itself, not while its operands are copied."""
        given, args, kwargs = sample.copy(device)
        before = run.under_test.fallbacks()
        with _every_warning() as caught:
            sample.operator(given, *args, **kwargs)
        after = run.under_test.fallbacks()
        names = {name for name, count in after.items() if count > before.get(name, 0)}
        for warning in caught:
            if _WARNING.search(str(warning.message)):
                names.update(_OVERLOAD.findall(str(warning.message)) or ["an operator"])
        run.fallbacks |= names
        if names and run.under_test.expectations.must_be_native(str(run.subject)):
            computed = ", ".join(sorted(names))
            raise Mismatch(f"the CPU computed {computed}; {run.subject} is declared to be native")


@contextmanager
def _every_warning() -> Iterator[list[warnings.WarningMessage]]:
    """Records warnings, also those that torch would give only once."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield caught
    finally:
        torch.set_warn_always(before)


PROPERTIES = [Fallback]
