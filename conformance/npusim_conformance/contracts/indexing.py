# SPDX-License-Identifier: BSD-3-Clause
"""Indexing and scalars: reading and writing parts, and values that come back to Python."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from npusim_conformance.contracts import contract, on, other_device, refuses, same
from npusim_conformance.inputs.torch_testing import dtype_name
from npusim_conformance.properties.base import Run, require

_LONG = torch.tensor([2, 0, -1])
_MASK = torch.tensor([True, False, True, False])
_INDEXES: dict[str, Any] = {
    "int": 1,
    "negative int": -2,
    "slice": slice(1, 3),
    "slice with a step": slice(None, None, 2),
    "None": None,
    "Ellipsis": (Ellipsis, 1),
    "ints": (1, 2, 3),
    "int and slice": (slice(1, None), 0, slice(2, 4)),
    "list": [0, 3, 1],
    "bool": True,
    "long tensor": _LONG,
    "long tensors": (_LONG, _LONG),
    "long tensor and slice": (slice(None), _LONG, slice(1, 3)),
    "mask": _MASK,
    "mask and int": (_MASK, 1),
    "0-d tensor": torch.tensor(2),
    "no element": torch.zeros(0, dtype=torch.int64),
}


def _values() -> torch.Tensor:
    return torch.arange(120.0).view(4, 5, 6)


def _moved(index: Any, device: torch.device) -> Any:
    if isinstance(index, tuple):
        return tuple(_moved(part, device) for part in index)
    return index.to(device) if isinstance(index, torch.Tensor) else index


@contract()
def every_index_reads(run: Run) -> None:
    """x[index] gives what the CPU gives, for indexes on the device and on the CPU."""
    here = _values()
    there = here.to(run.device)
    for name, index in _INDEXES.items():
        expected = here[index]
        same(f"x[{name}]", there[_moved(index, run.device)], expected)
        same(f"x[{name}] with indexes on the CPU", there[index], expected)


@contract()
def every_index_writes(run: Run) -> None:
    """x[index] = value writes what the CPU writes: a number, a scalar tensor, a row."""
    values: dict[str, Any] = {"a number": 7, "a 0-d tensor": torch.tensor(8.0)}
    for name, index in _INDEXES.items():
        part = _values()[index]
        values["a tensor"] = torch.arange(float(part.numel())).view(part.shape)
        for kind, value in values.items():
            here, there = _values(), _values().to(run.device)
            here[index] = value
            given = _moved(value, run.device) if kind == "a tensor" else value
            there[_moved(index, run.device)] = given
            same(f"x after x[{name}] = {kind}", there, here)


@contract()
def writes_follow_each_other(run: Run) -> None:
    """Elements written one after the other each keep their own value."""
    there = torch.zeros(4, 3).to(run.device)
    for row in range(4):
        for column in range(3):
            there[row, column] = 10 * row + column
    same("the rows", there, torch.tensor([[10.0 * row + c for c in range(3)] for row in range(4)]))


@contract()
def slices_are_views(run: Run) -> None:
    """Basic indexes give views, indexes by tensors give copies."""
    base = torch.zeros(4, 5).to(run.device)
    base[1:3][0].fill_(1)
    base[[0, 3]].fill_(9)
    expected = torch.zeros(4, 5)
    expected[1] = 1
    same("the base", base, expected)


@contract()
def writes_accumulate_when_asked(run: Run) -> None:
    """index_put_(accumulate=True) adds up equal indexes."""
    target = torch.zeros(4).to(run.device)
    index = torch.tensor([1, 1, 3]).to(run.device)
    target.index_put_((index,), on(run.device, 1, 2, 4), accumulate=True)
    same("the target", target, torch.tensor([0.0, 3.0, 0.0, 4.0]))


@contract()
def ints_out_of_range_are_refused(run: Run) -> None:
    """An int out of range, too many indexes, and a mask of another size raise IndexError."""
    there = _values().to(run.device)
    refuses("x[4]", lambda: there[4], IndexError)
    refuses("x[-5]", lambda: there[-5], IndexError)
    refuses("four indexes of three", lambda: there[0, 0, 0, 0], IndexError)
    mask = torch.ones(3, dtype=torch.bool).to(run.device)
    refuses("a mask of another size", lambda: there[mask], IndexError)
    refuses("an index of floats", lambda: there[on(run.device, 1.0)], IndexError)


# Numbers that no smaller or less exact dtype holds: each comes back as it is, or it went by one.
_EXACT: dict[torch.dtype, complex] = {
    torch.bool: True,
    torch.float16: 2**-24,
    torch.bfloat16: 2**-133,
    torch.float32: 2**-149,
    torch.complex64: complex(-0.5, 2**-149),
    torch.uint16: 2**16 - 1,
    torch.uint32: 2**32 - 1,
    torch.uint64: 2**64 - 1,
    torch.int8: -128,
    torch.uint8: 255,
    torch.int16: -32_767,
    torch.int32: 2**31 - 1,
    torch.int64: 2**53 + 1,
    torch.float64: 1 + 2**-52,
    torch.complex128: complex(1 + 2**-52, -1e-300),
}


@contract()
def scalars_come_back(run: Run) -> None:
    """item(), tolist() and Python's conversions read the device's values."""
    there = torch.tensor([[1.5, -2.0], [3.0, 0.0]]).to(run.device)
    same("tolist()", there.tolist(), [[1.5, -2.0], [3.0, 0.0]])
    same("item()", there[0, 0].item(), 1.5)
    same("float()", float(there[0, 1]), -2.0)
    same("int()", int(there[1, 0]), 3)
    same("bool()", [bool(there[1, 0]), bool(there[1, 1])], [True, False])
    same("as an index", [10, 20, 30][torch.tensor(1).to(run.device)], 20)
    same("complex()", complex(torch.tensor(1 + 2j).to(run.device)), 1 + 2j)
    same("item() of a bool", torch.tensor([True]).to(run.device).item(), True)
    there = torch.ones(2, 2).to(run.device)
    refuses("item() of four", there.item, (RuntimeError, ValueError))
    refuses("bool() of four", lambda: bool(there), RuntimeError)


@contract()
def scalars_of_every_dtype_come_back(run: Run) -> None:
    """item() and tolist() read the ends of each dtype: subnormal numbers, and the largest."""
    left_out = run.under_test.expectations.unsupported_dtypes
    for dtype, value in _EXACT.items():
        if dtype_name(dtype) in left_out:
            continue
        there = torch.tensor(value, dtype=dtype).to(run.device)
        same(f"item() of {dtype}", there.item(), value)
        same(f"tolist() of {dtype}", there.expand(2).tolist(), [value, value])
        if not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool):
            ends = torch.iinfo(dtype)
            for whole in (ends.min, ends.max, ends.max - 1, ends.max // 1023 | 1):
                there = torch.tensor(whole, dtype=dtype).to(run.device)
                same(f"item() of {dtype}", there.item(), whole)


@contract(two_devices=True, no_cpu="there is one CPU")
def scalars_come_from_their_device(run: Run) -> None:
    """item() reads a tensor of another device than the current one."""
    for device in (run.device, other_device(run)):
        same(f"item() on {device}", on(device, 7, 8)[1].item(), 8.0)


@contract()
def python_protocols_work(run: Run) -> None:
    """len(), iteration, unpacking, `in` and reversed order read the device's values."""
    there = on(run.device, 3, 1, 2)
    same("len()", len(there), 3)
    same("iteration", [float(value) for value in there], [3.0, 1.0, 2.0])
    first, *_ = there
    same("unpacking", float(first), 3.0)
    same("in", [2.0 in there, 5.0 in there], [True, False])
    same("sorted()", [float(value) for value in sorted(there)], [1.0, 2.0, 3.0])
    same("max()", float(max(there)), 3.0)


@contract(no_cpu="all are on the CPU")
def values_of_the_cpu_can_be_assigned(run: Run) -> None:
    """x[slice] = tensor of the CPU copies it; numbers read there may be mixed in here."""
    there = torch.zeros(2, 3).to(run.device)
    there[1] = torch.tensor([1.0, 2.0, 3.0])
    same("a row", there, torch.tensor([[0.0, 0.0, 0.0], [1.0, 2.0, 3.0]]))
    here = torch.zeros(2, 3)
    here[0] = there[1]
    same("a row of the CPU", here, torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]))


@contract(no_cpu="all are on the CPU")
def indexes_of_another_device_are_refused(run: Run) -> None:
    """A tensor of the CPU cannot be indexed by the device's tensors."""
    index = torch.tensor([0, 1]).to(run.device)
    refuses("x_cpu[index of the device]", lambda: torch.ones(3)[index], (RuntimeError, IndexError))


@contract()
def reading_follows_writing(run: Run) -> None:
    """item() sees every write before it, one after the other."""
    there = torch.zeros(1).to(run.device)
    reads: list[Callable[[], float]] = [
        lambda: float(there.item()),
        lambda: float(there),
        lambda: float(there.cpu()[0]),
    ]
    for step in range(30):
        there.add_(1)
        value = reads[step % 3]()
        require(value == step + 1, f"write {step + 1} reads as {value}")


@contract()
def threads_read_their_own_values(run: Run) -> None:
    """item() and cpu() in four threads at once read what lies there."""

    def wrong(start: int) -> int:
        count = 0
        for step in range(60):
            there = on(run.device, start + step)
            count += there.item() != start + step
            count += there.cpu().tolist() != [start + step]
        return count

    with ThreadPoolExecutor(4) as pool:
        counts = list(pool.map(wrong, range(0, 4000, 1000)))
    same("values that were read wrong, by thread", counts, [0, 0, 0, 0])
