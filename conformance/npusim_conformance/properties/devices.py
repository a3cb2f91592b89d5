# SPDX-License-Identifier: BSD-3-Clause
"""More than one device: work stays where its tensors are, whichever device is current."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from npusim_conformance.backend.device import CPU
from npusim_conformance.inputs.samples import Sample
from npusim_conformance.inputs.transfer import tensors_of
from npusim_conformance.judge.agreement import Agreement
from npusim_conformance.properties.base import (
    Dtypes,
    Run,
    in_profiles,
    require,
    values_are_defined,
)
from npusim_conformance.properties.calls import (
    Examine,
    PartedProperty,
    call_of,
    strides_that_matter,
)
from npusim_conformance.properties.gradients import gradients
from npusim_conformance.verdict import NotApplicable

SAMPLES = 5


class SecondDevice(PartedProperty):
    """On the second device as on the first, and the current device stays current."""

    name = "second_device"
    profiles = in_profiles(standard=Dtypes.DEFAULT, full=Dtypes.DEFAULT)

    def wants_gradient(self, run: Run) -> bool:
        """Where the operator has one."""
        return run.subject.info.supports_autograd and run.dtype in run.subject.dtypes(True)

    def parts(self, run: Run, sample: Sample) -> Iterator[Examine]:
        """Tensors on one device while the other is current, both ways, and on the current one."""
        second = run.under_test.second
        if second is None:
            raise NotApplicable("there is one device only")
        if not (run.under_test.has("current_device") and run.under_test.has("set_device")):
            raise NotApplicable("the backend's module has no current_device() and set_device()")
        if run.executed >= 4 * SAMPLES:
            return
        yield partial(_while_current, run, sample, _result, second, run.device)
        yield partial(_while_current, run, sample, _result, run.device, second)
        yield partial(_while_current, run, sample, _result, second, second)
        if any(leaf.requires_grad for leaf in tensors_of(sample.copy(CPU))):
            yield partial(_while_current, run, sample, _gradients, second, run.device)


def _while_current(
    run: Run,
    sample: Sample,
    function: Callable[[Sample, torch.device], Any],
    place: torch.device,
    current: torch.device,
    device: torch.device,
) -> None:
    """Tensors on `place` while `current` is the current device."""
    if device != run.device:
        raise NotApplicable("the CPU is one device")
    under_test = run.under_test
    current_device = under_test.module.current_device
    run.reseed()
    expected = function(sample, device)
    first = torch.device(place.type, current_device())
    try:
        under_test.make_current(current)
        run.reseed()
        got = function(sample, place)
        now = current_device()
    finally:
        under_test.make_current(first)
    what = f"{function.__name__.strip('_')} on {place} while {current} is current"
    agreement = Agreement(run.agreement.bitwise, run.agreement.rtol, run.agreement.atol)
    agreement.where = f"on {device}"
    (expected, before), (got, after) = expected, got
    agreement.check(before, after, place, f"an operand after the {what}")
    if sample.is_random or not values_are_defined(sample.operator):
        agreement.check_metadata(expected, got, place, what)
    else:
        agreement.check(expected, got, place, what)
    for one, other in zip(tensors_of(expected), tensors_of(got), strict=True):
        if one.layout == torch.strided and not one.is_nested:
            right, found = strides_that_matter(one), strides_that_matter(other)
            require(right == found, f"{what}: strides {found}, on {device} {right}")
    require(
        now == current.index,
        f"the operator made device {now} the current one; it was {current.index}",
    )


def _gradients(sample: Sample, device: torch.device) -> Any:
    return gradients(sample, sample.copy(device), 0, is_watched=True), []


def _result(sample: Sample, device: torch.device) -> Any:
    call = sample.copy(device)
    operands = [one for one in tensors_of(call) if one.device == device]  # some lie on the CPU
    return sample.finished(call_of(sample, sample.operator, call)), operands


PROPERTIES = [SecondDevice]
