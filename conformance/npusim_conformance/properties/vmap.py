# SPDX-License-Identifier: BSD-3-Clause
"""Operators under torch.vmap: kernels get their operands through wrappers, with another shape."""

from typing import Any

import torch
from torch.utils import _pytree as pytree

from npusim_conformance.backend.device import CPU
from npusim_conformance.inputs.samples import Sample
from npusim_conformance.properties.base import (
    Dtypes,
    Run,
    SampleProperty,
    in_profiles,
    values_are_defined,
)
from npusim_conformance.verdict import NotApplicable


class Vmap(SampleProperty):
    """Mapped over a batch of two, the operator gives what it gives on the CPU."""

    name = "vmap"
    profiles = in_profiles(full=Dtypes.DEFAULT)
    few = 5

    def examine(self, run: Run, sample: Sample, device: torch.device) -> None:
        """Where torch cannot map the operator on the CPU, there is nothing to ask."""
        if sample.is_random or not values_are_defined(sample.operator):
            raise NotApplicable("values are not defined")
        try:
            expected = _mapped(sample, CPU)
        except Exception as error:
            line = (str(error).splitlines() or [type(error).__name__])[0]
            raise NotApplicable(f"torch cannot map it on the CPU: {line[:150]}") from None
        run.agreement.check(expected, _mapped(sample, device), device)


def _mapped(sample: Sample, device: torch.device) -> Any:
    """The operator mapped over all its tensors, each of them twice."""
    leaves, structure = pytree.tree_flatten(sample.copy(device))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def function(*tensors: torch.Tensor) -> Any:
        filled = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        given, args, kwargs = pytree.tree_unflatten(filled, structure)
        return sample.finished(sample.operator(given, *args, **kwargs))

    return torch.vmap(function)(*(torch.stack([leaves[place]] * 2) for place in places))


PROPERTIES = [Vmap]
