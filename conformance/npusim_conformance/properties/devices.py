# SPDX-License-Identifier: BSD-3-Clause
"""More than one device: work stays where its tensors are, whichever device is current."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from npusim_conformance.agreement import Agreement
from npusim_conformance.properties.base import (
    Dtypes,
    Run,
    in_profiles,
    require,
    values_are_defined,
)
from npusim_conformance.properties.calls import Examine, PartedProperty, call_of
from npusim_conformance.samples import Sample
from npusim_conformance.verdict import NotApplicable

SAMPLES = 5


class SecondDevice(PartedProperty):
    """On the second device as on the first, and the current device stays current."""

    name = "second_device"
    profiles = in_profiles(standard=Dtypes.DEFAULT, full=Dtypes.DEFAULT)

    def parts(self, run: Run, sample: Sample) -> Iterator[Examine]:
        """Tensors on one device while the other is current, both ways, and on the current one."""
        second = run.under_test.second
        if second is None:
            raise NotApplicable("there is one device only")
        if not (run.under_test.has("current_device") and run.under_test.has("set_device")):
            raise NotApplicable("the backend's module has no current_device() and set_device()")
        if run.executed < 3 * SAMPLES:
            yield partial(self._while_current, run, sample, second, run.device)
            yield partial(self._while_current, run, sample, run.device, second)
            yield partial(self._while_current, run, sample, second, second)

    @staticmethod
    def _while_current(
        run: Run,
        sample: Sample,
        place: torch.device,
        current: torch.device,
        device: torch.device,
    ) -> None:
        """Tensors on `place` while `current` is the current device."""
        if device != run.device:
            raise NotApplicable("the CPU is one device")
        module = run.under_test.module
        run.reseed()
        expected = _result(sample, device)
        first = module.current_device()
        try:
            module.set_device(current)
            run.reseed()
            got = _result(sample, place)
            now = module.current_device()
        finally:
            module.set_device(first)
        what = f"result on {place} while {current} is current"
        agreement = Agreement(run.agreement.bitwise, run.agreement.rtol, run.agreement.atol)
        agreement.where = f"on {device}"
        if sample.is_random or not values_are_defined(sample.operator):
            agreement.check_metadata(expected, got, place, what)
        else:
            agreement.check(expected, got, place, what)
        require(
            now == current.index,
            f"the operator made device {now} the current one; it was {current.index}",
        )


def _result(sample: Sample, device: torch.device) -> Any:
    return sample.finish(call_of(sample, sample.operator, sample.copy(device)))


PROPERTIES = [SecondDevice]
