# SPDX-License-Identifier: BSD-3-Clause
"""0-dim tensors of the host beside tensors of the device: taken and refused as on CUDA.

CUDA's choice depends on the operator's iterator and on its loop; the table below holds operators
for which both are known (BinaryOps.cpp and the files of aten/src/ATen/native/cuda in torch 2.13).
"""

from collections.abc import Iterator
from functools import partial

import torch

from npusim_conformance.backend.device import CPU
from npusim_conformance.inputs.samples import Call, Sample
from npusim_conformance.inputs.subjects import Subject
from npusim_conformance.inputs.transfer import Transfer
from npusim_conformance.properties.base import Dtypes, Run, in_profiles
from npusim_conformance.properties.calls import Examine, PartedProperty, call_of, tried
from npusim_conformance.verdict import Mismatch, NotApplicable

# Operator -> the places of its tensors, the input being 0, that may be a 0-dim tensor of the host.
TAKEN: dict[str, frozenset[int]] = {
    **dict.fromkeys(
        """add sub rsub mul div.no_rounding_mode div.trunc_rounding div.floor_rounding true_divide
        floor_divide remainder fmod pow eq ne lt le gt ge bitwise_and bitwise_or bitwise_xor
        logical_and logical_or logical_xor maximum minimum xlogy copysign""".split(),
        frozenset({0, 1}),
    ),
    "addcmul": frozenset({2}),
    "addcdiv": frozenset(),
}
SAMPLES = 4


class HostScalars(PartedProperty):
    """A 0-dim tensor of the host beside device tensors is taken, or refused, as on CUDA."""

    name = "host_scalars"
    profiles = in_profiles(standard=Dtypes.DEFAULT, full=Dtypes.DEFAULT)
    where = "for a scalar of the device"

    def applies(self, subject: Subject, dtype: torch.dtype | None) -> str:
        """Operators of the table."""
        return "" if subject.name in TAKEN else "the operator is not in the table of CUDA's rule"

    def parts(self, run: Run, sample: Sample) -> Iterator[Examine]:
        """Each tensor in turn."""
        given, args, _ = sample.copy(CPU)
        count = 1 + sum(isinstance(one, torch.Tensor) for one in args)
        if run.executed >= SAMPLES * count or count < 2 or not isinstance(given, torch.Tensor):
            return
        for place in range(count):
            yield partial(self._in, run, sample, place)

    @staticmethod
    def _in(run: Run, sample: Sample, place: int, device: torch.device) -> None:
        if device.type == "cpu":
            raise NotApplicable("the CPU is one device")
        on_host = _with_scalar(sample, place, CPU, device)
        got, error = tried(lambda: call_of(sample, sample.operator, on_host))
        is_taken = place in TAKEN[sample.subject.name]
        what = f"a 0-dim tensor of the host as tensor {place}"
        if is_taken and error is not None:
            raise Mismatch(f"{what}: refused, CUDA takes it: {str(error).splitlines()[0][:160]}")
        if not is_taken and error is None:
            raise Mismatch(f"{what}: accepted, CUDA refuses it")
        if not is_taken:
            return
        there = _with_scalar(sample, place, device, device)
        expected = call_of(sample, sample.operator, there)
        run.agreement.check(expected, got, device, what)


def _with_scalar(sample: Sample, place: int, elsewhere: torch.device, device: torch.device) -> Call:
    """The sample on `device`, with the first element of one tensor on `elsewhere` in its place."""
    given, args, kwargs = sample.copy(CPU)
    tensors = [given, *args]
    places = [number for number, one in enumerate(tensors) if isinstance(one, torch.Tensor)]
    others = [tensors[number] for number in places if number != places[place]]
    if tensors[places[place]].numel() == 0 or all(other.dim() == 0 for other in others):
        raise NotApplicable("no 0-dim tensor beside others")
    scalar = tensors[places[place]].detach().flatten()[0].clone()
    moved = Transfer(device)(([*tensors], kwargs))
    moved[0][places[place]] = Transfer(elsewhere)(scalar)
    return moved[0][0], tuple(moved[0][1:]), moved[1]


PROPERTIES = [HostScalars]
