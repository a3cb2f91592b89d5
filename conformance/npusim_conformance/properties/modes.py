# SPDX-License-Identifier: BSD-3-Clause
"""Values under the switches of torch that may send a call to another kernel."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from npusim_conformance.backend.device import CPU
from npusim_conformance.inputs.samples import Call, Sample
from npusim_conformance.inputs.subjects import Subject
from npusim_conformance.inputs.transfer import Transfer, tensors_of
from npusim_conformance.properties.base import (
    Dtypes,
    Property,
    Run,
    in_profiles,
    values_are_defined,
)
from npusim_conformance.properties.calls import are_plain, call_of, same_decision, tried
from npusim_conformance.properties.determinism import deterministic
from npusim_conformance.properties.edges import EDGES
from npusim_conformance.verdict import NotApplicable

SAMPLES = 4
# torch composes these on every device but the CPU, under deterministic algorithms: they round.
COMPOSED = {f"nn.functional.{name}" for name in (
    "interpolate.bilinear", "interpolate.trilinear", "upsample_bilinear"
)}  # fmt: skip
ELEMENTS_MAX = 1000  # of a call of `edges`; length is not what is asked here

Switch = Callable[[], AbstractContextManager[Any]]
SWITCHES: dict[str, Switch] = {
    "inference_mode()": torch.inference_mode,
    "deterministic algorithms": lambda: deterministic(True),
}


class Modes(Property):
    """Under inference_mode() and deterministic algorithms, in place too, values are the CPU's."""

    name = "modes"
    profiles = in_profiles(standard=Dtypes.DEFAULT, full=Dtypes.DEFAULT)

    def applies(self, subject: Subject, dtype: torch.dtype | None) -> str:
        """Not for results that are uninitialised memory."""
        return "" if values_are_defined(subject.info) else "the result is uninitialised memory"

    def check(self, run: Run) -> None:
        """Each switch for a few samples."""
        for sample in run.few(SAMPLES):
            for switch in SWITCHES:
                run.attempt(sample.index, partial(self._examine, run, sample, switch, None))
                in_place = sample.operator.inplace_variant
                if in_place is not None and are_plain(sample.raw.input):
                    run.attempt(sample.index, partial(self._examine, run, sample, switch, in_place))
        calls = EDGES.get(run.subject.name, [])  # among them are equal indexes
        for number, call in enumerate(calls):
            if sum(tensor.numel() for tensor in tensors_of(call)) <= ELEMENTS_MAX:
                run.attempt(number, partial(self._examine_edge, run, call))

    @staticmethod
    def _examine(
        run: Run, sample: Sample, switch: str, in_place: Any, device: torch.device
    ) -> None:
        if sample.is_random:
            raise NotApplicable("random: the property `random` asks for its seeds")
        what = f"in place under {switch}" if in_place else f"under {switch}"

        def called(where: torch.device) -> Any:
            call: Call = sample.copy(where)  # outside of the switch, as a program's tensors are
            with SWITCHES[switch]():
                return call_of(sample, in_place or sample.operator, call)

        results = _both(called, device, what)
        if results is None:
            return
        expected, got = map(sample.finished, results)
        recompute = None if in_place else lambda vary: sample.finished(sample.run_varied(vary))
        agreement = run.agreement
        if run.subject.name in COMPOSED and "deterministic" in switch:
            agreement = replace(agreement, bitwise=False)
        agreement.check(expected, got, device, what, recompute)

    @staticmethod
    def _examine_edge(run: Run, call: Any, device: torch.device) -> None:
        what = "under deterministic algorithms"

        def called(where: torch.device) -> Any:
            args, kwargs = Transfer(where)(call)
            with deterministic(True), torch.no_grad():
                return run.subject.info(*args, **kwargs)

        results = _both(called, device, what)
        if results is not None:
            run.agreement.check(*results, device, what)


def _both(
    called: Callable[[torch.device], Any], device: torch.device, what: str
) -> tuple[Any, Any] | None:
    """Results on the CPU and on the device, or None where both refuse the call."""
    expected, refused = tried(lambda: called(CPU))
    got, error = tried(lambda: called(device))
    if error is not None and "does not have a deterministic implementation" in str(error):
        raise NotApplicable(str(error).splitlines()[0])
    if (refused is None) != (error is None) or refused is None:
        same_decision(refused, error, what)
        return expected, got
    return None  # with which exception is the property `errors`'s question


PROPERTIES = [Modes]
