# SPDX-License-Identifier: BSD-3-Clause
"""Device memory: its statistics, reuse, and what happens when there is no more of it."""

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import torch

from npusim_conformance.contracts import contract, in_thread, other_device, refuses, same
from npusim_conformance.contracts.leaks import leaves_nothing
from npusim_conformance.contracts.stream import all_are, current, filled, long_work
from npusim_conformance.properties.base import Run, require
from npusim_conformance.verdict import NotApplicable

_NO_CPU = "torch keeps no statistics of the CPU's memory"
_MIB = 1 << 20
_TOO_MUCH = 1 << 50  # bytes; no device has a pebibyte


def _allocated(run: Run) -> int:
    """Bytes of live tensors, without garbage that has not been collected yet."""
    gc.collect()
    count = run.under_test.allocated_bytes()
    if count is None:
        raise NotApplicable("neither torch.accelerator nor the module counts allocated bytes")
    for asked in run.under_test.statistics:
        if hasattr(asked, "memory_allocated"):
            name = f"{asked.__name__}.memory_allocated()"
            same(name, int(asked.memory_allocated(run.device.index)), count)
    return count


def _statistics(run: Run, *names: str) -> list[Any]:
    """The modules that have all of these, torch.accelerator first. Raises NotApplicable."""
    found = [one for one in run.under_test.statistics if all(hasattr(one, name) for name in names)]
    if not found:
        raise NotApplicable(f"neither torch.accelerator nor the module has {', '.join(names)}")
    return found


def _block(run: Run, mebibytes: int = 4) -> torch.Tensor:
    return torch.empty(mebibytes * _MIB, dtype=torch.uint8, device=run.device)


@contract(no_cpu=_NO_CPU)
def allocated_counts_live_tensors(run: Run) -> None:
    """Allocated bytes grow by at least a tensor's size, and shrink again when it dies."""
    before = _allocated(run)
    tensor = _block(run)
    grown = _allocated(run) - before
    require(4 * _MIB <= grown <= 6 * _MIB, f"4 MiB more are counted as {grown} bytes")
    del tensor
    same("bytes after it died", _allocated(run), before)


@contract(no_cpu=_NO_CPU)
def views_allocate_nothing(run: Run) -> None:
    """Views keep their base's memory and count no bytes of their own."""
    before = _allocated(run)
    tensor = _block(run)
    with_base = _allocated(run)
    view = tensor.view(-1, 64)[1:].t()
    same("bytes with a view", _allocated(run), with_base)
    del tensor
    same("bytes while the view lives", _allocated(run), with_base)
    del view
    same("bytes after both died", _allocated(run), before)


@contract(no_cpu=_NO_CPU)
def empty_tensors_allocate_nothing(run: Run) -> None:
    """A tensor without elements counts no bytes."""
    before = _allocated(run)
    tensors = [torch.empty(shape, device=run.device) for shape in ((0,), (0, 5), (3, 0, 2))]
    same("bytes", _allocated(run), before)
    same("elements", [tensor.numel() for tensor in tensors], [0, 0, 0])


@contract(no_cpu=_NO_CPU)
def temporaries_are_freed(run: Run) -> None:
    """A chain of operators, and one that raises, leave nothing allocated."""
    values = filled(run.device, 1)
    before = _allocated(run)
    long_work(values)
    same("bytes after a chain", _allocated(run), before)
    narrow = torch.ones(3).to(run.device)
    with_both = _allocated(run)
    refuses("a sum of shapes that do not fit", lambda: values + narrow)
    same("bytes after an error", _allocated(run), with_both)


@contract(no_cpu=_NO_CPU)
def memory_may_die_in_another_thread(run: Run) -> None:
    """A tensor is freed whichever thread drops it."""
    before = _allocated(run)
    held = [_block(run)]
    in_thread(held.clear)
    same("bytes after another thread dropped a tensor", _allocated(run), before)
    made = in_thread(lambda: _block(run))
    del made
    same("bytes after a tensor of another thread died", _allocated(run), before)


@contract(no_cpu=_NO_CPU)
def new_data_frees_the_old(run: Run) -> None:
    """`tensor.data = other` frees what the tensor had before."""
    before = _allocated(run)
    tensor = _block(run)
    tensor.data = torch.empty(0, dtype=torch.uint8, device=run.device)
    same("bytes with other data", _allocated(run), before)


@contract(no_cpu=_NO_CPU)
def resizing_frees_the_old(run: Run) -> None:
    """Memory that resize_() replaces is freed."""
    before = _allocated(run)
    tensor = _block(run)
    tensor.resize_(16 * _MIB)
    del tensor
    same("bytes after it died", _allocated(run), before)


@contract(no_cpu=_NO_CPU)
def reserved_covers_allocated(run: Run) -> None:
    """Reserved bytes are never fewer than allocated ones."""
    kept = []
    for mebibytes in (1, 8, 3):
        kept.append(_block(run, mebibytes))
        for asked in _statistics(run, "memory_allocated", "memory_reserved"):
            allocated, reserved = asked.memory_allocated(), asked.memory_reserved()
            require(reserved >= allocated, f"{allocated} bytes allocated of {reserved} reserved")


@contract(no_cpu=_NO_CPU)
def peak_is_the_highest(run: Run) -> None:
    """max_memory_allocated() is the most since reset_peak_memory_stats()."""
    for asked in _statistics(run, "max_memory_allocated", "reset_peak_memory_stats"):
        live = _block(run)
        before = _allocated(run)
        asked.reset_peak_memory_stats()
        same("peak after a reset", asked.max_memory_allocated(), before)
        tensor = _block(run)
        highest = _allocated(run)
        del tensor
        same("peak after it died", asked.max_memory_allocated(), highest)
        asked.reset_peak_memory_stats()
        same("peak after another reset", asked.max_memory_allocated(), _allocated(run))
        same("bytes after resets", _allocated(run), before)
        del live


@contract(no_cpu=_NO_CPU)
def statistics_agree(run: Run) -> None:
    """memory_stats() has torch's names, no negative number, and memory_allocated()'s."""
    for asked in _statistics(run, "memory_stats", "memory_allocated"):
        _statistics_agree(run, asked)


def _statistics_agree(run: Run, module: Any) -> None:
    kept = _block(run)
    found = module.memory_stats()
    name = "allocated_bytes.all.current"
    require(name in found, f"memory_stats() has no {name!r}")
    same(name, found[name], module.memory_allocated())
    numbers = {key: value for key, value in found.items() if isinstance(value, int)}
    negative = [key for key, value in numbers.items() if value < 0 and "limit" not in key
                and "max_split_size" not in key]  # fmt: skip
    same("negative statistics", negative, [])
    require(kept.numel() <= numbers[name], f"{name} is less than a live tensor's size")
    active = found.get("active_bytes.all.current") or found[name]  # 0: not counted
    require(active >= found[name], f"{active} active bytes, {found[name]} allocated ones")


@contract(no_cpu=_NO_CPU)
def empty_cache_gives_back(run: Run) -> None:
    """empty_cache() gives unused memory back and leaves live tensors as they are."""
    for asked in _statistics(run, "empty_cache", "memory_reserved"):
        _empty_cache_gives_back(run, asked)


def _empty_cache_gives_back(run: Run, module: Any) -> None:
    live = filled(run.device, 3)
    unused = _block(run, 64)
    del unused
    gc.collect()
    run.under_test.synchronize()
    before = module.memory_reserved()
    module.empty_cache()
    run.under_test.make_current(run.device)  # of what moves it, another contract speaks
    after = module.memory_reserved()
    require(after <= before - 64 * _MIB or before < 64 * _MIB,
            f"{before} bytes reserved before, {after} after, 64 MiB of them unused")  # fmt: skip
    require(after >= module.memory_allocated(), "less is reserved than allocated")
    all_are("a live tensor", live, 3.0)


@contract(no_cpu="the CPU's allocator raises RuntimeError")
def too_much_is_out_of_memory(run: Run) -> None:
    """An allocation that cannot be had raises torch.OutOfMemoryError."""
    refuses(
        "a tensor of 1 PiB",
        lambda: torch.empty(_TOO_MUCH, dtype=torch.uint8, device=run.device),
        torch.OutOfMemoryError,
    )


@contract(no_cpu="the CPU's allocator raises RuntimeError")
def operators_run_out_of_memory(run: Run) -> None:
    """An operator whose result cannot be had raises torch.OutOfMemoryError; operands are whole."""
    value = torch.ones(1).to(run.device)
    wide = value.expand(_TOO_MUCH // 4)
    refuses("the copy of an expanded tensor", wide.clone, torch.OutOfMemoryError)
    same("its operand", value, torch.ones(1))


@contract(no_cpu="the CPU's allocator raises RuntimeError")
def works_after_out_of_memory(run: Run) -> None:
    """After out of memory, nothing is lost and the device works on."""
    live = filled(run.device, 2)
    counted = run.under_test.allocated_bytes() is not None
    before = _allocated(run) if counted else 0
    for _ in range(3):
        refuses(
            "a tensor of 1 PiB",
            lambda: torch.empty(_TOO_MUCH, dtype=torch.uint8, device=run.device),
        )  # by which class is the question of another contract
        all_are("a tensor that is made next", torch.ones(1 << 20).to(run.device), 1.0)
    if counted:
        same("bytes after it", _allocated(run), before)
    all_are("a live tensor", live, 2.0)
    all_are("a sum", live + 1, 3.0)


@contract(no_cpu=_NO_CPU)
def freed_memory_is_used_again(run: Run) -> None:
    """Tensors made and freed in turn need the memory of one."""
    module = _statistics(run, "memory_reserved")[-1]
    for _ in range(3):
        _block(run)
    before = module.memory_reserved()
    for _ in range(50):
        _block(run)
    same("reserved bytes after 50 more", module.memory_reserved(), before)


@contract(no_cpu="tensors of the CPU belong to no stream")
def record_stream_keeps_memory(run: Run) -> None:
    """After record_stream(s), freed memory is not given away before s has used it."""
    side = torch.Stream(run.device)
    results = []
    for round_ in range(8):
        values = filled(run.device, float(round_))
        side.wait_stream(current(run.device))
        with side:
            results.append(long_work(values))
        values.record_stream(side)
        del values
        for _ in range(2):
            filled(run.device, -1e6)  # would overwrite what the side stream still reads
    side.synchronize()
    for round_, result in enumerate(results):
        all_are(f"the result of round {round_}", result, 24.0 + round_)


def _free_shrinks(run: Run, module: Any) -> bool:
    """Whether free memory becomes less when a tensor takes a part of it, of 256 MiB at most."""
    index = run.device.index
    if hasattr(module, "empty_cache"):
        module.empty_cache()  # else it might come from what is reserved already
    before, _ = module.mem_get_info(index)
    kept = torch.empty(min(1 << 28, before // 8), dtype=torch.uint8, device=run.device)
    after, _ = module.mem_get_info(index)
    return bool(before - after >= kept.nbytes // 2)


@contract(no_cpu=_NO_CPU, needs=("mem_get_info",))
def free_memory_is_plausible(run: Run) -> None:
    """mem_get_info() is (free, total) in bytes, with free no more than total."""
    free, total = run.under_test.module.mem_get_info(run.device.index)
    require(0 <= free <= total and total > 0, f"mem_get_info() is {(free, total)}")
    # Others may give memory back meanwhile, so it is tried more than once.
    require(
        any(_free_shrinks(run, run.under_test.module) for _ in range(3)),
        "free memory stays when much is allocated",
    )


@contract(no_cpu=_NO_CPU, two_devices=True)
def statistics_are_per_device(run: Run) -> None:
    """A tensor on one device counts nothing on another."""
    for asked in _statistics(run, "memory_allocated"):
        _statistics_are_per_device(run, asked)


def _statistics_are_per_device(run: Run, module: Any) -> None:
    second = other_device(run)
    gc.collect()
    before = module.memory_allocated(run.device), module.memory_allocated(second)
    tensor = torch.empty(4 * _MIB, dtype=torch.uint8, device=second)
    after = module.memory_allocated(run.device), module.memory_allocated(second)
    same(f"bytes on {run.device} with a tensor on {second}", after[0], before[0])
    grown = after[1] - before[1]
    require(
        grown >= 4 * _MIB, f"4 MiB on {second} are {grown} bytes more in its memory_allocated()"
    )
    del tensor
    same(f"bytes on {second} after it died", module.memory_allocated(second), before[1])


@contract(no_cpu=_NO_CPU, needs=("memory_summary",))
def summary_is_a_text(run: Run) -> None:
    """memory_summary() is a text."""
    text = run.under_test.module.memory_summary()
    require(isinstance(text, str) and bool(text.strip()), f"memory_summary() is {text!r}")


@contract(no_cpu=_NO_CPU)
def reference_cycles_are_freed(run: Run) -> None:
    """A tensor in a reference cycle, and one with a graph, are freed with what holds them."""
    before = _allocated(run)
    ring: list[object] = [_block(run)]
    ring.append(ring)
    leaf = filled(run.device, 1).requires_grad_()
    result = long_work(leaf).sum()
    torch.autograd.backward(result)
    del ring, leaf, result
    same("bytes after all died", _allocated(run), before)


@contract()
def live_tensors_do_not_overlap(run: Run) -> None:
    """Each of many live tensors, of odd sizes, keeps its values while others come and go."""
    sizes = (1, 2, 3, 5, 15, 16, 17, 63, 127, 128, 129, 255, 511, 513, 1000, 1023, 4095, 4097)
    kept: list[tuple[int, torch.Tensor]] = []
    for number, size in enumerate(sizes * 3):
        kept.append((number, torch.empty(size, dtype=torch.uint8, device=run.device)))
        if number % 4 == 3:
            kept.pop(number % len(kept))
    for number, tensor in kept:
        tensor.fill_(number + 1)
    for number, tensor in kept:
        expected = torch.full((len(tensor),), number + 1, dtype=torch.uint8)
        same(f"{len(tensor)} bytes filled with {number + 1}", tensor, expected)


@contract()
def addresses_fit_every_dtype(run: Run) -> None:
    """The address of a new tensor is a multiple of 16, which the widest dtype takes."""
    for size in (1, 3, 7, 16, 100, 4097):
        address = torch.empty(size, dtype=torch.uint8, device=run.device).data_ptr()
        require(address % 16 == 0, f"the address of {size} bytes is {address:#x}")


@contract()
def threads_may_allocate_at_once(run: Run) -> None:
    """Tensors that four threads make and fill at the same time keep their values."""

    def work(value: int) -> list[torch.Tensor]:
        made = [torch.full((size,), float(value)).to(run.device) for size in range(1, 40)]
        return [tensor.clone() for tensor in made][::2]

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(work, range(4)))
    for value, tensors in enumerate(results):
        for tensor in tensors:
            same("values", tensor, torch.full((len(tensor),), float(value)))


def _counted(found: dict[str, Any], name: str) -> int:
    if name not in found:
        raise NotApplicable(f"memory_stats() has no {name}")
    return int(found[name])


@contract(no_cpu=_NO_CPU)
def totals_grow_with_every_allocation(run: Run) -> None:
    """memory_stats() adds up what was allocated and freed; their difference is what lives."""
    for asked in _statistics(run, "memory_stats"):
        before = asked.memory_stats(run.device.index)
        _block(run)
        gc.collect()
        if hasattr(asked, "empty_cache"):
            asked.empty_cache()
        after = asked.memory_stats(run.device.index)
        if before.get("reserved_bytes.all.current") == after.get("reserved_bytes.all.current") == 0:
            made, freed = (
                after.get(name, 0) - before.get(name, 0)
                for name in ("num_device_alloc", "num_device_free")
            )
            same("num_device_free with what num_device_alloc counts given back", freed, made)
        for name in ("allocated_bytes.all.allocated", "allocated_bytes.all.freed"):
            grown = _counted(after, name) - _counted(before, name)
            require(grown >= 4 * _MIB, f"{name} grew by {grown} bytes with a tensor of 4 MiB")
        allocated, freed, lives = (
            _counted(after, f"allocated_bytes.all.{name}")
            for name in ("allocated", "freed", "current")
        )
        started = _counted(before, "allocated_bytes.all.current") - (
            _counted(before, "allocated_bytes.all.allocated")
            - _counted(before, "allocated_bytes.all.freed")
        )
        same("what lives", lives, started + allocated - freed)


@contract(no_cpu=_NO_CPU)
def totals_can_be_reset(run: Run) -> None:
    """reset_accumulated_memory_stats() sets totals to 0, and leaves what lives."""
    for asked in _statistics(run, "memory_stats", "reset_accumulated_memory_stats"):
        kept = _block(run)
        lives = _counted(asked.memory_stats(run.device.index), "allocated_bytes.all.current")
        asked.reset_accumulated_memory_stats(run.device.index)
        found = asked.memory_stats(run.device.index)
        same("bytes allocated after it", _counted(found, "allocated_bytes.all.current"), lives)
        same("memory_allocated() after it", _allocated(run), lives)
        for name in ("allocated_bytes.all.allocated", "allocated_bytes.all.freed",
                     "reserved_bytes.all.allocated", "num_device_alloc"):  # fmt: skip
            same(f"{name} after it", found.get(name, 0), 0)
        require(lives >= kept.numel(), "a live tensor is not counted")


@contract(no_cpu=_NO_CPU, two_devices=True)
def peaks_are_per_device(run: Run) -> None:
    """A peak counts one device's tensors, and its reset leaves the other's."""
    second = other_device(run)
    for asked in _statistics(run, "max_memory_allocated", "reset_peak_memory_stats"):
        for device in (run.device, second):
            asked.reset_peak_memory_stats(device)
        peaks = [asked.max_memory_allocated(device) for device in (run.device, second)]
        torch.empty(4 * _MIB, dtype=torch.uint8, device=second)
        same("the first's peak", asked.max_memory_allocated(run.device), peaks[0])
        high = asked.max_memory_allocated(second)
        require(high - peaks[1] >= 4 * _MIB, f"the second's peak grew by {high - peaks[1]} bytes")
        asked.reset_peak_memory_stats(run.device)
        same("the second's after the first's was reset", asked.max_memory_allocated(second), high)


_ROUNDS = 16


@contract(no_cpu=_NO_CPU)
def freed_memory_leaves_the_host(run: Run) -> None:
    """Tensors that are made, written and dropped in turn do not fill the process's own memory.

    A device whose memory is the host's may leak where its statistics say that all is freed.
    """
    works: dict[str, Callable[[], object]] = {
        "tensors": lambda: _block(run).fill_(1),
        "copies to the device": lambda: torch.ones(_MIB).to(run.device),
        "copies to the CPU": lambda: there.cpu(),
        "clones": lambda: there.clone(),
        "conversions": lambda: there.to(torch.int32),
    }
    there = torch.ones(_MIB).to(run.device)
    leaves_nothing(run, works, times=_ROUNDS, each=4 * _MIB)


@contract(no_cpu=_NO_CPU)
def copies_leave_nothing(run: Run) -> None:
    """Conversions, strided copies, in-place operators and out= keep no temporary allocated."""
    there = torch.ones(64, 64).to(run.device)
    target = torch.ones(64, 64).to(run.device)
    half, whole = there.half(), there.long()
    works: dict[str, Callable[[], object]] = {
        "conversions": lambda: there.half(),
        "conversions by copy_()": lambda: target.copy_(there.int()),
        "conversions on the way here": lambda: there.to("cpu", torch.float64),
        "conversions on the way there": lambda: torch.ones(64, 64, dtype=torch.int64).to(there),
        "strided copies": lambda: there.t().contiguous(),
        "copies into strided memory": lambda: target.t().copy_(there),
        "strided copies to the CPU": lambda: there.t()[::2].cpu(),
        "strided copies from the CPU": lambda: target.copy_(torch.ones(64, 64).t()),
        "broadcasts": lambda: target.copy_(there[0]),
        "in-place operators": lambda: target.add_(there.t()),
        "out=": lambda: torch.add(there, 1, out=target),
        "out= of another dtype": lambda: torch.add(there.half(), 1, out=target),
        "views": lambda: there.view(-1)[5:].t(),
        "item()": lambda: there[0, 0].item(),
        "item() of float16": lambda: half[0, 0].item(),
        "item() of int64": lambda: whole[0, 0].item(),
        "errors": lambda: _is_refused(lambda: there.view(7)),
    }
    second = run.under_test.second
    if second is not None:
        works["copies to another device"] = lambda: there.to(second).to(run.device)
        works["strided copies to another device"] = lambda: there.t().to(second)
    for name, work in works.items():
        work()
        before = _allocated(run)
        for _ in range(3):
            work()
        same(f"bytes after three {name}", _allocated(run), before)


def _is_refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except RuntimeError:
        return True
    return False


@contract(no_cpu=_NO_CPU)
def peaks_of_reserved_memory_can_be_reset(run: Run) -> None:
    """max_memory_reserved() is what is reserved after a reset, and grows with what is reserved."""
    names = ("max_memory_reserved", "memory_reserved", "reset_peak_memory_stats")
    for asked in _statistics(run, *names):
        _block(run, 64)
        if hasattr(asked, "empty_cache"):
            asked.empty_cache()
        run.under_test.make_current(run.device)  # of what moves it, another contract speaks
        asked.reset_peak_memory_stats()
        same("the peak after a reset", asked.max_memory_reserved(), asked.memory_reserved())
        kept = _block(run, 64)
        peak, now = asked.max_memory_reserved(), asked.memory_reserved()
        require(peak >= now >= kept.nbytes, f"{now} bytes are reserved, their peak is {peak}")


@contract()
def more_than_four_gibibytes(run: Run) -> None:
    """A tensor of more than 2^32 bytes has them all: the first and the last keep their values."""
    size = (1 << 32) + 4097
    try:
        tensor = torch.empty(size, dtype=torch.uint8, device=run.device)
    except (RuntimeError, MemoryError) as error:
        raise NotApplicable("the device has no 4 GiB to give") from error
    same("nbytes() of its storage", tensor.untyped_storage().nbytes(), size)
    places = (0, 4096, 1 << 31, (1 << 32) - 1, 1 << 32, size - 1)
    for value, place in enumerate(places):
        tensor[place : place + 1].copy_(torch.tensor([value + 1], dtype=torch.uint8))
    found = [tensor[place : place + 1].cpu().item() for place in places]
    same("elements at 0, 2^31, 2^32 and the end", found, [n + 1 for n in range(len(places))])


@contract()
def threads_may_read_one_tensor(run: Run) -> None:
    """Four threads at once copy, read and compute with one tensor, and each sees its values."""
    there = torch.arange(5000.0).to(run.device)
    expected = torch.arange(5000.0)

    def work(_: int) -> int:
        wrong = 0
        for _ in range(15):
            wrong += not torch.equal(there.cpu(), expected)
            wrong += there[4000].item() != 4000.0
            wrong += not torch.equal((there + there).cpu(), 2 * expected)
        return wrong

    with ThreadPoolExecutor(4) as pool:
        same("values read wrong, by thread", list(pool.map(work, range(4))), [0] * 4)


# Operators that raise, most of them in a kernel, by a tensor of 256 rows of floating-point numbers.
WRONG: dict[str, Callable[[torch.Tensor], object]] = {
    "mm()": lambda x: torch.mm(x, x[:3]),
    "linear()": lambda x: torch.nn.functional.linear(x, x[:, :3]),
    "cat()": lambda x: torch.cat([x, x[:, :3]]),
    "add_()": lambda x: x.add_(x[:3, :5]),
    "copy_()": lambda x: x.copy_(x[:3, :5]),
    "sum() of no dimension": lambda x: x.sum(5),
    "topk() of too many": lambda x: x.topk(1000),
    "index_select() by floats": lambda x: x.index_select(0, x[0]),
    "gather() by floats": lambda x: x.gather(0, x),
    "a conversion refused in place": lambda x: x.long().mul_(x),
    "grad() of another tensor": lambda x: torch.autograd.grad(
        (x.requires_grad_() ** 2).sum(), x[0]
    ),
}


@contract(no_cpu=_NO_CPU)
def errors_keep_nothing(run: Run) -> None:
    """An operator that raises lets its arguments go."""
    for name, call in WRONG.items():
        before = _allocated(run)
        for _ in range(3):
            with suppress(RuntimeError, IndexError, TypeError, ValueError):
                call(torch.ones(256, 256).to(run.device))
        same(f"bytes after three caught errors of {name}", _allocated(run), before)
