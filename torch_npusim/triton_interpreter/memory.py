# SPDX-License-Identifier: BSD-3-Clause
"""The memory of a kernel's tensor arguments: which bytes are theirs, and which were touched.

The elements of a view may lie apart, as in `base[:, :4]`. Runs holds the bytes of all elements;
bytes between the elements belong to nobody.
"""

from dataclasses import dataclass, field
from typing import Any

import torch


class Runs:
    """Runs of bytes without gaps, numbered through: byte k of the runs is number k.

    Attributes:
        starts: Address of the first byte of each run, sorted; int64.
        ends: Of the byte behind each run.
        size: Bytes in all runs.
    """

    def __init__(self, starts: Any, ends: Any) -> None:
        import numpy

        self._numpy = numpy
        if not len(starts):
            starts = ends = numpy.zeros(1, dtype=numpy.int64)  # one run without a byte
        order = numpy.argsort(starts, kind="stable")
        starts, ends = starts[order], numpy.maximum.accumulate(ends[order])
        first = numpy.ones(len(starts), dtype=bool)  # of those that touch, the first begins a run
        first[1:] = starts[1:] > ends[:-1]
        self.starts = starts[first]
        self.ends = ends[numpy.append(numpy.flatnonzero(first)[1:], len(starts)) - 1]
        lengths = self.ends - self.starts
        self._before = numpy.cumsum(lengths) - lengths
        self.size = int(lengths.sum())

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "Runs":
        """The bytes of a tensor's elements."""
        import numpy

        size = tensor.element_size()
        if tensor.numel() == 0:
            return cls(numpy.empty(0, numpy.int64), numpy.empty(0, numpy.int64))
        length = size
        strided: list[Any] = []  # offsets of each other dimension, smallest stride first
        for stride, n in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
            if n == 1 or stride == 0:
                continue
            if stride * size == length and not strided:
                length *= n
            else:
                strided.append(numpy.arange(n, dtype=numpy.int64) * (stride * size))
        starts = numpy.array([tensor.data_ptr()], dtype=numpy.int64)
        for offsets in strided:
            starts = (starts[:, None] + offsets).reshape(-1)
        return cls(starts, starts + length)

    @classmethod
    def union(cls, all_runs: "list[Runs]") -> "Runs":
        """The bytes of any of `all_runs`."""
        import numpy

        return cls(
            numpy.concatenate([runs.starts for runs in all_runs]),
            numpy.concatenate([runs.ends for runs in all_runs]),
        )

    def numbers(self, addresses: Any, size: int) -> Any:
        """The number of the first of `size` bytes at each address; -1 where a run lacks one."""
        numpy = self._numpy
        run = numpy.searchsorted(self.starts, addresses, side="right") - 1
        inside = (run >= 0) & (addresses <= self.ends[run] - size)
        return numpy.where(inside, self._before[run] + addresses - self.starts[run], -1)

    def spans(self, marks: Any) -> list[tuple[int, int]]:
        """Address and size of what is marked, from its first to its last byte in each run."""
        numpy = self._numpy
        numbers = numpy.flatnonzero(marks)
        run = numpy.searchsorted(self._before, numbers, side="right") - 1
        first = numpy.flatnonzero(numpy.diff(run, prepend=-1))
        last = numpy.append(first[1:], len(numbers)) - 1 if len(first) else first
        at = numbers - self._before[run] + self.starts[run]
        return [(int(at[i]), int(at[k] - at[i]) + 1) for i, k in zip(first, last, strict=True)]

    def addresses(self) -> Any:
        """The address of every byte."""
        numpy = self._numpy
        run = numpy.repeat(numpy.arange(len(self.starts)), self.ends - self.starts)
        return numpy.arange(self.size) - self._before[run] + self.starts[run]


@dataclass
class Memory:
    """Accesses of all arguments over one storage.

    Attributes:
        runs: Their bytes.
        read: Which of these were read.
        written: Which were written.
    """

    runs: Runs
    read: Any = field(repr=False)
    written: Any = field(repr=False)


@dataclass
class Region:
    """One tensor argument.

    Attributes:
        name: Of the argument.
        home: Address of its first element.
        first: The kernel's pointer argument for that.
        runs: Bytes of its elements.
        memory: The memory that it shares with other arguments over its storage.
    """

    name: str
    home: int
    first: int
    runs: Runs
    memory: Memory

    def numbers(self) -> Any:
        """Numbers in `memory` of all bytes of this argument."""
        return self.memory.runs.numbers(self.runs.addresses(), 1)


def regions_of(arguments: dict[str, torch.Tensor]) -> dict[str, Region]:
    """The regions of a kernel's tensor arguments."""
    import numpy

    runs = {name: Runs.of(tensor) for name, tensor in arguments.items()}
    storages = {name: x.untyped_storage().data_ptr() for name, x in arguments.items()}
    memories: dict[int, Memory] = {}
    for storage in set(storages.values()):
        sharing = [runs[name] for name, of in storages.items() if of == storage]
        union = sharing[0] if len(sharing) == 1 else Runs.union(sharing)
        memories[storage] = Memory(union, *(numpy.zeros(union.size, dtype=bool) for _ in "rw"))
    return {
        name: Region(name, x.data_ptr(), x.data_ptr(), runs[name], memories[storages[name]])
        for name, x in arguments.items()
    }
