# SPDX-License-Identifier: BSD-3-Clause
"""Tensors survive being saved, pickled and copied: values, strides, shared memory and device."""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import torch

from npusim_conformance.agreement import Agreement
from npusim_conformance.device import CPU
from npusim_conformance.properties.base import Dtypes, Run, SampleProperty, in_profiles
from npusim_conformance.samples import Sample
from npusim_conformance.transfer import tensors_of
from npusim_conformance.verdict import Mismatch, NotApplicable

Tensors = list[torch.Tensor]


class Serialization(SampleProperty):
    """Inputs and results come back from torch.save, pickle and deepcopy as they were."""

    name = "serialization"
    profiles = in_profiles(standard=Dtypes.DEFAULT, full=Dtypes.DEFAULT)
    few = 3

    def examine(self, run: Run, sample: Sample, device: torch.device) -> None:
        """One list of tensors through every way out and back."""
        call = sample.copy(device)
        given, args, kwargs = call
        result = sample.operator(given, *args, **kwargs)
        tensors = _savable([tensor.detach() for tensor in tensors_of((call, result))])
        if not tensors:
            raise NotApplicable("no tensors")
        saved = io.BytesIO()
        torch.save(tensors, saved)

        def load(**options: Any) -> Tensors:
            saved.seek(0)
            loaded: Tensors = torch.load(saved, weights_only=True, **options)
            return loaded

        ways: dict[str, Callable[[], Tensors]] = {
            "torch.load": load,
            "pickle": lambda: pickle.loads(pickle.dumps(tensors)),
            "copy.deepcopy": lambda: copy.deepcopy(tensors),
        }
        for way, back in ways.items():
            after = back()
            compare(tensors, after, device, way)
            if way != "pickle":  # which writes a storage anew for each tensor
                compare_sharing(tensors, after, way)
        if device != CPU:
            compare(tensors, load(map_location="cpu"), CPU, 'torch.load(map_location="cpu")')
            there = torch.load(
                _saved([tensor.cpu() for tensor in tensors]),
                map_location=device,
                weights_only=True,
            )
            compare(tensors, there, device, f'torch.load(map_location="{device}")', lies=False)


def _savable(tensors: Tensors) -> Tensors:
    """Without those that see another tensor's storage as another dtype: torch.save refuses them."""
    dtypes: dict[int, torch.dtype] = {}
    return [
        tensor
        for tensor in tensors
        if tensor.layout != torch.strided
        or dtypes.setdefault(tensor.untyped_storage()._cdata, tensor.dtype) == tensor.dtype
    ]


def _saved(tensors: Tensors) -> io.BytesIO:
    stream = io.BytesIO()
    torch.save(tensors, stream)
    stream.seek(0)
    return stream


def compare(
    before: Tensors, after: Tensors, device: torch.device, way: str, lies: bool = True
) -> None:
    """Raises Mismatch unless `after` is on `device` and otherwise as `before`.

    With lies=False strides and bits may differ.
    """
    exactly = Agreement(bitwise=True, where="before")
    exactly.check(before, after, device, f"{way}, tensor")
    if not lies:
        return
    for number, (one, other) in enumerate(zip(before, after, strict=True)):
        was, now = _lie_of(one), _lie_of(other)
        for what, value in was.items():
            if value != now[what]:
                raise Mismatch(f"{way}, tensor {number}: {what} {now[what]}, before {value}")


def compare_sharing(before: Tensors, after: Tensors, way: str) -> None:
    """Raises Mismatch unless the same tensors share storages."""
    if _sharing(before) != _sharing(after):
        raise Mismatch(
            f"{way}: tensors share storages as {_sharing(after)}, before as {_sharing(before)}"
        )


def _lie_of(tensor: torch.Tensor) -> dict[str, Any]:
    if tensor.layout != torch.strided or tensor.is_nested:
        return {}
    return {
        "strides": tensor.stride(),
        "storage offset": tensor.storage_offset(),
        "conj bit": tensor.is_conj(),
        "neg bit": tensor.is_neg(),
    }


def _sharing(tensors: Tensors) -> list[int]:
    """For each tensor the number of the first one with the same storage."""
    seen: dict[int, int] = {}
    return [
        seen.setdefault(tensor.untyped_storage()._cdata, number)
        for number, tensor in enumerate(tensors)
        if tensor.layout == torch.strided and not tensor.is_nested
    ]


PROPERTIES = [Serialization]
