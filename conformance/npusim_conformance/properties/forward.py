# SPDX-License-Identifier: BSD-3-Clause
"""The value of an operator, on every sample input, against the CPU."""

import torch

from npusim_conformance.backend.device import CPU
from npusim_conformance.inputs.samples import Sample
from npusim_conformance.properties.base import (
    Dtypes,
    Run,
    SampleProperty,
    in_profiles,
    values_are_defined,
)


class Forward(SampleProperty):
    """The result is the CPU's: structure, device, dtypes, shapes and values."""

    name = "forward"
    profiles = in_profiles(smoke=Dtypes.DEFAULT, standard=Dtypes.ALL, full=Dtypes.ALL)

    def examine(self, run: Run, sample: Sample, device: torch.device) -> None:
        """Runs the operator there and here."""
        is_random = sample.is_random
        if is_random:
            run.reseed()
        expected = sample.run(CPU)
        if is_random:
            run.reseed()
        got = sample.run(device)
        own_values = is_random and not run.under_test.expectations.cpu_generator
        if own_values or not values_are_defined(sample.operator):
            run.agreement.check_metadata(expected, got, device)
            return

        finished = sample.finished(got)
        if finished is not got:
            run.agreement.check_metadata(expected, got, device)
        run.agreement.check(
            sample.finished(expected),
            finished,
            device,
            recompute=lambda vary: sample.finished(sample.run_varied(vary)),
        )


PROPERTIES = [Forward]
