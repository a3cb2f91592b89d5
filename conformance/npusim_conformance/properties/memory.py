# SPDX-License-Identifier: BSD-3-Clause
"""Memory that operators took is given back."""

import gc
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from npusim_conformance.inputs.samples import Sample
from npusim_conformance.inputs.transfer import tensors_of
from npusim_conformance.properties.base import Dtypes, Property, Run, in_profiles
from npusim_conformance.properties.calls import Examine, are_plain, call_of
from npusim_conformance.properties.gradients import gradients
from npusim_conformance.verdict import Mismatch, NotApplicable

SAMPLES = 10
SAMPLES_OF_OTHERS = 3  # in place, into out= and of gradients
GRADIENTS = 3  # a backward's thread may let go of its last tensors after the call has ended
PATIENCE = 1.0  # seconds, for that thread on a machine with other work


class Memory(Property):
    """Allocated bytes are what they were before once an operator's results are dropped.

    The first call may leave something for good (a workspace, a table); the calls after may not.
    """

    name = "memory"
    profiles = in_profiles(standard=Dtypes.DEFAULT, full=Dtypes.DEFAULT)

    def check(self, run: Run) -> None:
        """Calls the function; for a few samples in place, into out= and its gradients as well."""
        has_gradient = run.subject.info.supports_autograd and run.dtype in run.subject.dtypes(True)
        for number, sample in enumerate(run.few(SAMPLES)):
            for call in _calls(sample) if number < SAMPLES_OF_OTHERS else [sample.run]:
                run.attempt(sample.index, partial(self._examine, run, call, 1))
        for sample in run.few(SAMPLES_OF_OTHERS, True) if has_gradient else []:
            call = partial(_gradients, sample)
            run.attempt(sample.index, partial(self._examine, run, call, GRADIENTS))

    @staticmethod
    def _examine(run: Run, call: Examine, calls: int, device: torch.device) -> None:
        """Counts after some calls and after as many more."""
        if device != run.device or run.under_test.allocated_bytes() is None:
            call(device)
            raise NotApplicable("the backend does not say how many bytes are allocated")
        before, after = (min(_bytes_after(run, call) for _ in range(calls)) for _ in range(2))
        if after > before:
            gc.collect()  # cycles of Python objects are no leak of the device, and hide none
            before = _settled_bytes(run)
            after = min(_bytes_after(run, call) for _ in range(calls))
            gc.collect()
            after = min(after, _awaited_bytes(run, before))
        if after > before:
            raise Mismatch(f"{(after - before) // calls} bytes stay allocated after each call")


def _calls(sample: Sample) -> Iterator[Examine]:
    yield sample.run
    if sample.operator.inplace_variant is not None:
        in_place = sample.operator.inplace_variant
        yield lambda device: call_of(sample, in_place, sample.copy(device))
    if sample.operator.supports_out:
        yield partial(_into_out, sample)


def _gradients(sample: Sample, device: torch.device) -> None:
    gradients(sample, sample.copy(device), 0)


def _into_out(sample: Sample, device: torch.device) -> Any:
    call = sample.copy(device)
    result = call_of(sample, sample.operator, call)
    if not are_plain(result):
        raise NotApplicable("the results are no strided tensors")
    target = tuple(map(torch.empty_like, tensors_of(result)))
    one = isinstance(result, torch.Tensor)
    return call_of(sample, sample.operator, call, out=target[0] if one else target)


def _bytes_after(run: Run, call: Examine) -> int:
    call(run.device)
    return _settled_bytes(run)


def _settled_bytes(run: Run) -> int:
    run.under_test.synchronize()
    count = run.under_test.allocated_bytes()
    assert count is not None
    return count


def _awaited_bytes(run: Run, most: int) -> int:
    """Allocated bytes once they are `most` or fewer, or PATIENCE has passed."""
    until = time.monotonic() + PATIENCE
    while (count := _settled_bytes(run)) > most and time.monotonic() < until:
        time.sleep(0.001)
    return count


PROPERTIES = [Memory]
