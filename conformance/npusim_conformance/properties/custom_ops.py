# SPDX-License-Identifier: BSD-3-Clause
"""Operators that users register with torch.library, on tensors of the device."""

from collections.abc import Callable

import torch

from npusim_conformance.backend.device import CPU
from npusim_conformance.inputs import torch_testing
from npusim_conformance.inputs.samples import Sample
from npusim_conformance.properties.base import Dtypes, Property, Run, in_profiles
from npusim_conformance.verdict import Mismatch, NotApplicable

CHECKS = (
    "test_schema",
    "test_autograd_registration",
    "test_faketensor",
    "test_aot_dispatch_dynamic",
)
# torch looks at the registrations of these devices only, and refuses others.
REGISTRATION_DEVICES = ("cpu", "cuda", "xpu")
SAMPLES_MAX = 2  # the operators are the same for all; what varies is the device


class CustomForward(Property):
    """The operator runs on the device and gives what it gives on the CPU."""

    name = "forward"
    kind = "custom"
    profiles = in_profiles(standard=Dtypes.DEFAULT, full=Dtypes.ALL)

    def check(self, run: Run) -> None:
        """Looks at all samples."""
        for sample in run.samples():
            run.attempt(sample.index, _bind_forward(run, sample))


def _bind_forward(run: Run, sample: Sample) -> Callable[[torch.device], None]:
    return lambda device: run.agreement.check(sample.run(CPU), sample.run(device), device)


class Opcheck(Property):
    """torch.library.opcheck: schema, registrations, fake tensors and AOT dispatch on the device."""

    name = "opcheck"
    kind = "custom"
    profiles = in_profiles(standard=Dtypes.DEFAULT, full=Dtypes.DEFAULT)

    def check(self, run: Run) -> None:
        """Each check of torch's by itself."""
        for sample in run.samples(requires_grad=run.subject.info.supports_autograd)[:SAMPLES_MAX]:
            for check in CHECKS:
                run.attempt(sample.index, _bind(sample, check))


def _bind(sample: Sample, check: str) -> Callable[[torch.device], None]:
    return lambda device: _opcheck(sample, check, device)


def _opcheck(sample: Sample, check: str, device: torch.device) -> None:
    if check == "test_autograd_registration" and device.type not in REGISTRATION_DEVICES:
        raise NotApplicable(f"torch checks registrations on {REGISTRATION_DEVICES} only")
    given, args, kwargs = sample.copy(device)
    complaint = torch_testing.opcheck(sample.operator.op, (given, *args), kwargs, check)
    if complaint:
        raise Mismatch(f"{check}: {complaint[:500]}")


PROPERTIES = [CustomForward, Opcheck]
