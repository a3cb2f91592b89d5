# SPDX-License-Identifier: BSD-3-Clause
"""Lazy clones as operands: read as the tensor they clone, and written to without changing it."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from npusim_conformance.inputs.samples import Sample
from npusim_conformance.inputs.transfer import tensors_of
from npusim_conformance.properties.base import Dtypes, Run, in_profiles, require, values_are_defined
from npusim_conformance.properties.calls import Examine, PartedProperty, are_plain, call_of, tried
from npusim_conformance.verdict import NotApplicable

SAMPLES = 3


class CopyOnWrite(PartedProperty):
    """Lazy clones give the values of their originals; a write to one leaves the original alone."""

    name = "copy_on_write"
    profiles = in_profiles(standard=Dtypes.DEFAULT, full=Dtypes.DEFAULT)
    where = "for the originals"

    def parts(self, run: Run, sample: Sample) -> Iterator[Examine]:
        """Read, then written to."""
        if run.executed >= 2 * SAMPLES:
            return
        yield partial(self._read, run, sample)
        if sample.operator.inplace_variant is not None:
            yield partial(self._written, run, sample)

    @staticmethod
    def _read(run: Run, sample: Sample, device: torch.device) -> None:
        if sample.is_random or not values_are_defined(sample.operator):
            raise NotApplicable("the result is random or undefined")
        call = sample.copy(device)
        clones = _lazily_cloned(call)
        got = call_of(sample, sample.operator, clones)
        expected = call_of(sample, sample.operator, sample.copy(device))
        run.agreement.check(
            sample.finished(expected), sample.finished(got), device, "of lazy clones"
        )

    @staticmethod
    def _written(run: Run, sample: Sample, device: torch.device) -> None:
        call = sample.copy(device)
        before = [tensor.detach().cpu().clone() for tensor in tensors_of(call)]
        clones = _lazily_cloned(call)
        _, error = tried(lambda: call_of(sample, sample.operator.inplace_variant, clones))
        if error is not None:
            raise NotApplicable("the sample cannot be written to")
        for number, (tensor, old) in enumerate(zip(tensors_of(call), before, strict=True)):
            same = torch.equal(tensor.detach().cpu().nan_to_num(), old.nan_to_num())
            require(same, f"a write to the lazy clone of tensor {number} shows in the original")


def _lazily_cloned(call: Any) -> Any:
    if not are_plain(call) or any(
        tensor.is_conj() or tensor.is_neg() for tensor in tensors_of(call)
    ):
        raise NotApplicable("not all tensors are plain ones")

    def clone(leaf: Any) -> Any:
        return leaf.detach()._lazy_clone() if isinstance(leaf, torch.Tensor) else leaf

    return pytree.tree_map(clone, call)


PROPERTIES = [CopyOnWrite]
