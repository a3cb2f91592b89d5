# SPDX-License-Identifier: BSD-3-Clause
"""Every byte that a kernel reads or writes is an operand of its command.

Nobody is asked which operands a kernel has: bytes that change must have been noted as written, and
changing bytes that were not noted must not change a result.
"""

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch
from ops.swept import ALL, NPU, on_device, over_operators, samples_of, tensors_of
from torch.utils._pytree import tree_leaves, tree_map

from torch_npusim import _C
from torch_npusim.sim import races

SAMPLES = 10 if ALL else 2  # of each operator


class Memory:
    """The bytes of the storages of some tensors, and which of them were noted."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.bytes = {}
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage.device.type == NPU.type and storage.nbytes() > 0:
                view = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
                self.bytes[storage.data_ptr()] = view
        self.read = {start: numpy.zeros(len(view), bool) for start, view in self.bytes.items()}
        self.written = copy.deepcopy(self.read)

    def values(self) -> dict[int, numpy.ndarray]:
        return {start: view.cpu().numpy() for start, view in self.bytes.items()}

    def note(self, log: list[dict[str, Any]]) -> None:
        for entry in log:
            for first, written, element_bytes, sizes, strides in entry["operands"]:
                for start, noted in (self.written if written else self.read).items():
                    if start <= first < start + len(noted):
                        at = addresses(first, element_bytes, sizes, strides) - start
                        noted[at[at < len(noted)]] = True  # others lay there before

    def disturb(self) -> bool:
        """Changes all bytes that were not noted; returns whether there are any."""
        found = False
        for start, view in self.bytes.items():
            free = ~(self.read[start] | self.written[start])
            if free.any():
                found = True
                mask = torch.from_numpy(free.astype(numpy.uint8) * 0x15).to(view.device)
                view.bitwise_xor_(mask)
        return found


def addresses(first: int, element_bytes: int, sizes: list[int], strides: list[int]) -> Any:
    """Returns the addresses of all bytes of an operand."""
    at = numpy.array([first])
    for size, stride in zip(sizes, strides, strict=True):
        at = (at[..., None] + numpy.arange(size) * stride).reshape(-1)
    return (at[..., None] + numpy.arange(element_bytes)).reshape(-1)


def is_plain(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and plain(leaf)


def plain(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch.strided and not tensor.is_nested and not tensor.is_quantized


def bits(tree: Any, inputs: Memory) -> list[Any]:
    """Returns the values of results that are not views of inputs: a view reads nothing."""
    found: list[Any] = []
    for leaf in tree_leaves(tree):
        if not isinstance(leaf, torch.Tensor):
            found.append(repr(leaf))
        elif plain(leaf) and leaf.untyped_storage().data_ptr() in inputs.bytes:
            continue
        else:
            found.append(leaf.detach().cpu().numpy(force=True).tobytes())
    return found


def check(run: Callable[[Any], Any], inputs: Any) -> None:
    """Runs it twice; `run` gets fresh inputs each time, of equal values."""
    torch.manual_seed(1)
    first = copy.deepcopy(inputs)
    memory = Memory(tensors_of(first))
    before = memory.values()
    _C.start_event_log()
    try:
        results = run(first)
    finally:
        log = _C.take_event_log()
    memory.note(log)
    for start, values in memory.values().items():
        changed = values != before[start]
        assert not (changed & ~memory.written[start]).any(), "bytes changed that were not noted"
    made = Memory([tensor for tensor in tensors_of(results) if plain(tensor)])
    made.note(log)
    for tensor in tensors_of(results):
        start = tensor.untyped_storage().data_ptr() if plain(tensor) else 0
        if start not in made.bytes or start in memory.bytes:
            continue
        used = addresses(
            tensor.data_ptr(),
            tensor.element_size(),
            list(tensor.shape),
            [stride * tensor.element_size() for stride in tensor.stride()],
        )
        assert made.written[start][used - start].all(), "a result was not noted as written"
    second = copy.deepcopy(inputs)
    other = Memory(tensors_of(second))
    for (_, to), start in zip(other.read.items(), memory.read, strict=True):
        to[:] = memory.read[start] | memory.written[start]
    if other.disturb():
        torch.manual_seed(1)
        again = bits(run(second), other)
        assert again == bits(results, memory), "bytes were read that were not noted"


def samples(op: Any) -> Iterator[Any]:
    for sample in itertools.islice(samples_of(op), SAMPLES):
        moved = on_device(sample)
        if all(map(plain, tensors_of(moved))):
            yield moved


def no_room_for(results: Any) -> Any:
    """Returns what to pass as out= so that the operator has to make room itself."""
    return tree_map(lambda tensor: tensor.new_empty(0), results)


def cpu_makes_room(op: Any, inputs: Any) -> bool:
    """Returns whether the operator takes an empty `out=` on the CPU, which normal() does not."""
    x, args, kwargs = tree_map(
        lambda leaf: leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf, inputs
    )
    try:
        op(x, *args, **kwargs, out=no_room_for(op(x, *args, **kwargs)))
    except (RuntimeError, TypeError):
        return False
    return op.supports_out


@over_operators
def test_every_byte_that_an_operator_touches_is_noted(op):  # (rule V1)
    for inputs in samples(op):
        try:
            results = op(inputs[0], *inputs[1], **inputs[2])
        except (NotImplementedError, RuntimeError) as error:
            pytest.skip(f"docs/reference/exclusions.md: {error}")
        check(lambda given: op(given[0], *given[1], **given[2]), inputs)
        made = tree_leaves(results)  # a tuple without names has an out= of its own names
        if type(results) is not tuple and all(map(is_plain, made)) and cpu_makes_room(op, inputs):
            check(
                lambda given, like=results: op(
                    given[0], *given[1], **given[2], out=no_room_for(like)
                ),
                inputs,
            )
        if (in_place := op.inplace_variant) is not None:
            try:
                in_place(copy.deepcopy(inputs[0]), *inputs[1], **inputs[2])
            except (RuntimeError, TypeError):
                continue  # results of another shape or dtype
            check(lambda given, run=in_place: run(given[0], *given[1], **given[2]), inputs)


def test_a_write_that_is_not_noted_is_found():
    def run(x: torch.Tensor) -> torch.Tensor:
        x.untyped_storage().fill_(3)
        _C.take_event_log()
        _C.start_event_log()
        return x.view(torch.uint8)

    with pytest.raises(AssertionError, match="bytes changed"):
        check(run, torch.ones(8, device=NPU))


def test_a_read_that_is_not_noted_is_found():
    def run(x: torch.Tensor) -> float:
        total = x.sum().item()
        _C.take_event_log()
        _C.start_event_log()
        return total

    with pytest.raises(AssertionError, match="bytes were read"):
        check(run, torch.ones(8, device=NPU))


def test_a_result_that_is_not_noted_is_found():
    def run(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        _C.take_event_log()
        _C.start_event_log()
        x.add_(0)
        return y

    with pytest.raises(AssertionError, match="a result was not noted"):
        check(run, torch.ones(8, device=NPU))


def race_of(write: Callable[[], torch.Tensor]) -> list[races.Race]:
    """Returns the races when one stream reads what `write` has written on another."""
    side = torch.npusim.Stream()
    side.wait_stream(torch.npusim.current_stream())
    with races.record() as recorded:
        with torch.npusim.stream(side):
            written = write()
        written.sum()
        torch.npusim.synchronize()
    return recorded.races


def test_running_statistics_are_written():  # (rule V1)
    norm, x = torch.nn.BatchNorm1d(2, device=NPU), torch.ones(3, 2, device=NPU)

    def train() -> torch.Tensor:
        norm(x)
        return norm.running_mean

    def evaluate() -> torch.Tensor:
        norm.eval()(x)
        return norm.running_mean

    (race,) = race_of(train)
    assert race.first.name == "aten::native_batch_norm"
    assert race_of(evaluate) == []


def test_results_that_a_kernel_makes_room_for_are_written():  # (rule V1)
    out, x = torch.empty(0, device=NPU), torch.rand(3, 2, device=NPU)

    def search() -> torch.Tensor:
        return torch.kthvalue(x, 2, out=(out, out.new_empty(0, dtype=torch.int64)))[0]

    (race,) = race_of(search)
    assert race.first.name == "aten::kthvalue.values"
