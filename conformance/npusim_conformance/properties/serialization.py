# SPDX-License-Identifier: BSD-3-Clause
"""Tensors survive being saved, pickled and copied: values, strides, shared memory and device."""

import copy
import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from npusim_conformance.backend.device import CPU
from npusim_conformance.inputs.samples import Sample
from npusim_conformance.inputs.transfer import tensors_of
from npusim_conformance.judge.agreement import Agreement
from npusim_conformance.properties.base import Dtypes, Property, Run, in_profiles
from npusim_conformance.verdict import Mismatch, NotApplicable

SAMPLES_MAX = 3  # more samples of one operator are more of the same tensors

Tensors = list[torch.Tensor]


@dataclass(frozen=True)
class Way:
    """A way out and back, and what it keeps: what it does not keep on the CPU is not asked."""

    name: str
    carry: Callable[[Tensors, torch.device], Tensors]
    keeps_storages: bool = True
    keeps_bits: bool = True
    to_host: bool = False
    from_host: bool = False


def _saved(tensors: Tensors, **options: Any) -> Tensors:
    stream = io.BytesIO()
    torch.save(tensors, stream)
    stream.seek(0)
    loaded: Tensors = torch.load(stream, weights_only=True, **options)
    return loaded


def _pickled(tensors: Tensors, device: torch.device) -> Tensors:
    back: Tensors = pickle.loads(pickle.dumps(tensors))
    return back


WAYS = (
    Way("torch.load", lambda tensors, device: _saved(tensors)),
    Way("pickle", _pickled, keeps_storages=False),
    Way("copy.deepcopy", lambda tensors, device: copy.deepcopy(tensors), keeps_bits=False),
    Way(
        'torch.load(map_location="cpu")',
        lambda tensors, device: _saved(tensors, map_location="cpu"),
        to_host=True,
    ),
    Way(
        "torch.load(map_location=device)",
        lambda tensors, device: _saved(tensors, map_location=device),
        from_host=True,
    ),
)


class Serialization(Property):
    """Inputs and results come back from torch.save, pickle and deepcopy as they were."""

    name = "serialization"
    profiles = in_profiles(standard=Dtypes.DEFAULT, full=Dtypes.DEFAULT)

    def check(self, run: Run) -> None:
        """Each way by itself: torch does not know all tensors in all of them."""
        samples = run.samples()
        for number in range(min(SAMPLES_MAX, len(samples))):
            sample = samples[number * len(samples) // min(SAMPLES_MAX, len(samples))]
            for way in WAYS:
                run.attempt(sample.index, _bind(sample, way))


def _bind(sample: Sample, way: Way) -> Callable[[torch.device], None]:
    return lambda device: _examine(sample, way, device)


def _examine(sample: Sample, way: Way, device: torch.device) -> None:
    call = sample.copy(CPU if way.from_host else device)
    given, args, kwargs = call
    result = sample.operator(given, *args, **kwargs)
    tensors = _savable([tensor.detach() for tensor in tensors_of((call, result))])
    if not tensors:
        raise NotApplicable("no tensors")
    after = way.carry(tensors, device)
    exactly = Agreement(bitwise=True, where="before")
    for number, (one, other) in enumerate(zip(tensors, after, strict=True)):
        place = CPU if way.to_host else device if way.from_host else one.device
        exactly.check(one, other, place, f"{way.name}, tensor {number}")
        was, now = _lie_of(one, way), _lie_of(other, way)
        for what, value in was.items():
            if value != now[what]:
                raise Mismatch(f"{way.name}, tensor {number}: {what} {now[what]}, before {value}")
    if way.keeps_storages and _sharing(tensors) != _sharing(after):
        raise Mismatch(
            f"{way.name}: tensors share storages as {_sharing(after)}, before as "
            f"{_sharing(tensors)}"
        )


def _savable(tensors: Tensors) -> Tensors:
    """Without those that see another tensor's storage as another dtype: torch.save refuses them."""
    dtypes: dict[int, torch.dtype] = {}
    return [
        tensor
        for tensor in tensors
        if not _has_storage(tensor)
        or dtypes.setdefault(tensor.untyped_storage()._cdata, tensor.dtype) == tensor.dtype
    ]


def _has_storage(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch.strided and not tensor.is_nested


def _lie_of(tensor: torch.Tensor, way: Way) -> dict[str, Any]:
    if not _has_storage(tensor):
        return {}
    described: dict[str, Any] = {"strides": tensor.stride()}
    if way.keeps_storages:
        described["storage offset"] = tensor.storage_offset()
    if way.keeps_bits:
        described["conj bit"], described["neg bit"] = tensor.is_conj(), tensor.is_neg()
    return described


def _sharing(tensors: Tensors) -> list[int]:
    """For each tensor the number of the first one with the same storage, where that holds bytes."""
    seen: dict[int, int] = {}
    return [
        seen.setdefault(tensor.untyped_storage()._cdata, number)
        for number, tensor in enumerate(tensors)
        if _has_storage(tensor) and tensor.untyped_storage().nbytes()
    ]


PROPERTIES = [Serialization]
