# SPDX-License-Identifier: BSD-3-Clause
"""Memory that is not the operator's to write: around its tensors, and in its inputs."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from npusim_conformance.backend.device import CPU
from npusim_conformance.inputs.samples import Sample
from npusim_conformance.inputs.subjects import Subject
from npusim_conformance.inputs.transfer import Transfer, tensors_of
from npusim_conformance.properties.base import Dtypes, Run, in_profiles
from npusim_conformance.properties.calls import (
    LAYOUT_DEFINED,
    Examine,
    PartedProperty,
    are_plain,
    call_of,
    same_decision,
    takes_no_out,
    tried,
)
from npusim_conformance.verdict import Mismatch, NotApplicable

GUARD_BYTES = 256  # on each side; keeps the alignment of every dtype, and of vectors
SAMPLES = 10
# Write to inputs by definition: in place, or running statistics, or weights beyond max_norm.
WRITES_INPUT = frozenset(
    """cauchy exponential geometric log_normal normal.in_place uniform
    native_batch_norm _native_batch_norm_legit _batch_norm_with_update
    nn.functional.batch_norm batch_norm.without_cudnn nn.functional.instance_norm
    nn.functional.embedding nn.functional.embedding_bag""".split()
)


class Canary(PartedProperty):
    """Bytes around inputs and out= stay what they were, and so do inputs."""

    name = "canary"
    profiles = in_profiles(standard=Dtypes.DEFAULT, full=Dtypes.DEFAULT)

    def applies(self, subject: Subject, dtype: torch.dtype | None) -> str:
        """Operators that do not reach beyond their input by definition."""
        is_defined = subject.name in LAYOUT_DEFINED
        return "the result is defined by how the input lies in memory" if is_defined else ""

    def parts(self, run: Run, sample: Sample) -> Iterator[Examine]:
        """Inputs, then out=."""
        if run.executed >= 2 * SAMPLES:
            return
        yield partial(self._inputs, sample)
        if sample.operator.supports_out:
            yield partial(self._out, sample)

    @staticmethod
    def _inputs(sample: Sample, device: torch.device) -> None:
        call = _guarded_call(sample, device)
        before = [_Bytes(tensor) for tensor in tensors_of(call)]
        result = call_of(sample, sample.operator, call)
        del result
        _check_inputs(sample, call, before, "")

    @staticmethod
    def _out(sample: Sample, device: torch.device) -> None:
        expected = call_of(sample, sample.operator, sample.copy(device))
        if not are_plain(expected):
            raise NotApplicable("the results are no strided tensors")
        move = Transfer(device)
        outs = [
            move(_guarded(torch.zeros(one.shape, dtype=one.dtype))) for one in tensors_of(expected)
        ]
        before = [_Bytes(out) for out in outs]
        target: Any = outs[0] if isinstance(expected, torch.Tensor) else tuple(outs)
        call = _guarded_call(sample, device)
        given = [_Bytes(tensor) for tensor in tensors_of(call)]
        _, error = tried(lambda: call_of(sample, sample.operator, call, out=target))
        if error is not None and takes_no_out(error):
            raise NotApplicable("this form of the call takes no out=")
        same_decision(None, error, "out=")
        for number, out in enumerate(outs):
            before[number].check(out, f"out= {number}" if len(outs) > 1 else "out=", True)
        _check_inputs(sample, call, given, " of a call with out=")


class _Bytes:
    """The memory around and in a tensor, at one time."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.storage = tensor.untyped_storage()
        self.nbytes = tensor.nbytes
        self.bytes = self._read(tensor)

    def check(self, tensor: torch.Tensor, what: str, may_change: bool) -> None:
        """Raises where bytes around the tensor, or its own unless they may, have changed."""
        if tensor.untyped_storage()._cdata != self.storage._cdata:
            return  # resized into other memory; what was there is still looked at below
        changed = (self._read(tensor) != self.bytes).nonzero().flatten().tolist()
        before = [place for place in changed if place < GUARD_BYTES]
        after = [place for place in changed if place >= GUARD_BYTES + self.nbytes]
        if before:
            raise Mismatch(f"{what}: wrote {GUARD_BYTES - before[0]} bytes before its memory")
        if after:
            beyond = after[-1] - GUARD_BYTES - self.nbytes + 1
            raise Mismatch(f"{what}: wrote {beyond} bytes beyond its memory")
        if changed and not may_change:
            raise Mismatch(f"{what}: {len(changed)} of its bytes were changed")

    def _read(self, tensor: torch.Tensor) -> torch.Tensor:
        whole = torch.empty(0, dtype=torch.uint8, device=tensor.device)
        return whole.set_(self.storage).to(CPU, copy=True)


def _guarded_call(sample: Sample, device: torch.device) -> Any:
    """The sample's call on the device, with known bytes around its tensors."""
    host = sample.copy(CPU)
    if not are_plain(host):
        raise NotApplicable("sparse and quantized tensors have several memories")
    guarded = pytree.tree_map_only(torch.Tensor, _guarded, host)
    return sample.with_call(guarded).copy(device)


def _check_inputs(sample: Sample, call: Any, before: list[_Bytes], where: str) -> None:
    may_change = sample.subject.name in WRITES_INPUT
    for number, tensor in enumerate(tensors_of(call)):
        before[number].check(tensor, f"input {number}{where}", may_change)


def _guarded(tensor: torch.Tensor) -> torch.Tensor:
    """The values on the CPU, contiguous, with known bytes around them."""
    if tensor.is_conj():
        return _guarded(tensor.conj()).conj()
    if tensor.is_neg():
        return torch._neg_view(_guarded(torch._neg_view(tensor)))
    buffer = torch.arange(tensor.nbytes + 2 * GUARD_BYTES).remainder(251).to(torch.uint8)
    inside = buffer[GUARD_BYTES : GUARD_BYTES + tensor.nbytes].view(tensor.dtype)
    return inside.view(tensor.shape).copy_(tensor.detach())


PROPERTIES = [Canary]
