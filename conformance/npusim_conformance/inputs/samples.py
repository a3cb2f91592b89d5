# SPDX-License-Identifier: BSD-3-Clause
"""Sample inputs of operators: made on the CPU, copied to where they are needed.

The list for (operator, dtype, requires_grad, seed) is the same on every device. Made once and
kept until the next is asked for, since the properties of one operator run one after the other.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from npusim_conformance.inputs import torch_testing
from npusim_conformance.inputs.subjects import Subject
from npusim_conformance.inputs.transfer import Transfer, tensors_of
from npusim_conformance.inputs.variation import Variation

_DOUBLES = (torch.float64, torch.complex128)
Call = tuple[Any, tuple[Any, ...], dict[str, Any]]  # input, args, kwargs


class Sample:
    """One sample input. Nobody writes to `raw`; every call gets a copy of its own."""

    def __init__(self, subject: Subject, index: int, raw: Any) -> None:
        self.subject = subject
        self.operator = subject.info
        self.index = index
        self.raw = raw
        self._finish: Callable[[Any], Any] = raw.output_process_fn_grad  # drops what is ambiguous

    def finished(self, results: Any) -> Any:
        """Results without what is ambiguous, where they lay; what drops it computes on the CPU."""
        if self._finish.__qualname__.startswith("SampleInput.__init__"):  # torch's default
            return results
        places = {tensor.device for tensor in tensors_of(results)}
        found = self._finish(on_cpu(results))
        return moved(found, places.pop()) if len(places) == 1 else found

    @property
    def is_random(self) -> bool:
        """Whether the result depends on a generator."""
        return torch_testing.draws_random(self.subject.name, self.raw)

    def copy(self, device: torch.device) -> Call:
        """Input, args and kwargs on `device`, as they lie on the CPU."""
        transfer = Transfer(device)
        there = transfer((self.raw.input, self.raw.args, self.raw.kwargs))
        given, args, kwargs = there
        position = torch_testing.HOST_ARGUMENTS.get(self.subject.name)
        if position is not None and position < len(args):
            args = (*args[:position], self.raw.args[position], *args[position + 1 :])
        if self.operator.is_factory_function and "device" not in kwargs and not tensors_of(there):
            kwargs["device"] = device  # nothing else to go by
        return given, args, kwargs

    def with_call(self, call: Call) -> "Sample":
        """This sample with other tensors, which lie on the CPU."""
        raw = copy.copy(self.raw)
        raw.input, raw.args, raw.kwargs = call
        return Sample(self.subject, self.index, raw)

    def run(self, device: torch.device) -> Any:
        """The operator's result on `device`, for a fresh copy."""
        given, args, kwargs = self.copy(device)
        return self.operator(given, *args, **kwargs)

    def copy_varied(self, vary: Variation) -> Call:
        """copy() on the CPU with its leaves varied."""
        call: Call = pytree.tree_map(vary, self.copy(torch.device("cpu")))
        return call

    def run_varied(self, vary: Variation) -> Any:
        """The result on the CPU for varied inputs; with widen(), what the exact one looks like."""
        given, args, kwargs = self.copy_varied(vary)
        return self.operator(given, *args, **kwargs)


def moved(tree: Any, device: torch.device) -> Any:
    """Copies on a device, differentiable; what is conjugated lazily stays so."""

    def there(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_conj():
            return tensor.conj().to(device).conj()
        return tensor.to(device)

    return pytree.tree_map_only(torch.Tensor, there, tree)


def on_cpu(results: Any) -> Any:
    """Results on the CPU, differentiable."""
    return moved(results, torch.device("cpu"))


class SampleSource:
    """Keeps the samples asked for last."""

    def __init__(self, seed: int, maximum: int | None) -> None:
        self.seed = seed
        self.maximum = maximum
        self._key: tuple[str, torch.dtype, bool] | None = None
        self._samples: list[Sample] = []

    def get(
        self, subject: Subject, dtype: torch.dtype, requires_grad: bool = False
    ) -> list[Sample]:
        """All samples, or `maximum` of them spread evenly; their indexes are the full list's."""
        key = (str(subject), dtype, requires_grad)
        if key != self._key:
            self._key, self._samples = None, []
            raw = torch_testing.sample_inputs(subject.info, dtype, requires_grad, self.seed)
            chosen = spread(len(raw), self.maximum)
            self._samples = [Sample(subject, index, raw[index]) for index in chosen]
            self._key = key
        return self._samples


def spread(count: int, maximum: int | None) -> Iterator[int]:
    """Indexes below `count`: all, or `maximum` of them spread evenly."""
    if maximum is None or count <= maximum:
        yield from range(count)
    else:
        yield from (number * count // maximum for number in range(maximum))
