# SPDX-License-Identifier: BSD-3-Clause
"""Pinned host memory, and copies that do not wait."""

from collections.abc import Callable
from functools import partial

import torch

from npusim_conformance.contracts import contract, in_thread, on, refuses, same
from npusim_conformance.contracts.stream import all_are, current, filled, long_work
from npusim_conformance.properties.base import Run, require
from npusim_conformance.verdict import NotApplicable

_NO_CPU = "memory is pinned for an accelerator"
_ELEMENTS = 1 << 18


def pinned_memory(run: Run, value: float) -> torch.Tensor:
    """Pinned memory with one value; NotApplicable where it is pinned for another device."""
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or accelerator.type != run.device.type:
        raise NotApplicable(f"memory is pinned for torch's accelerator, which is {accelerator}")
    return torch.full((_ELEMENTS,), value, dtype=torch.float32).pin_memory()


@contract(no_cpu=_NO_CPU)
def pin_memory_pins(run: Run) -> None:
    """pin_memory() gives a pinned copy on the CPU; is_pinned() tells."""
    plain = torch.full((_ELEMENTS,), 3.0)
    same("is_pinned() of plain memory", plain.is_pinned(), False)
    pinned = pinned_memory(run, 3)
    same("is_pinned()", pinned.is_pinned(), True)
    same("device", pinned.device.type, "cpu")
    same("is_pinned() of a view", pinned[5:].view(-1).is_pinned(), True)
    same("pinned again", pinned.pin_memory().data_ptr(), pinned.data_ptr())
    same("is_pinned() of its storage", pinned.untyped_storage().is_pinned(), True)
    all_are("its values", pinned, 3.0)
    all_are("a sum with plain memory", pinned + plain, 6.0)


@contract(no_cpu=_NO_CPU)
def pinning_keeps_the_layout(run: Run) -> None:
    """pin_memory() keeps values, dtype and strides of what does not lie in rows."""
    pinned_memory(run, 0)
    for dtype in (torch.float32, torch.int16):
        here = torch.arange(24).to(dtype).view(2, 3, 4).permute(2, 0, 1)
        there = here.pin_memory()
        same(f"values of {dtype}", there, here)
        same(f"strides of {dtype}", there.stride(), here.stride())


@contract(no_cpu=_NO_CPU)
def layouts_of_pinned_memory_are_copied_right(run: Run) -> None:
    """Copies between pinned memory and the device respect the strides of both sides."""
    pinned_memory(run, 0)
    here = torch.arange(12.0).view(3, 4)
    expected = here.t().contiguous()
    for blocks in (True, False):
        how = "" if blocks else ", non_blocking"
        host = torch.zeros(4, 3).pin_memory()
        host.copy_(here.to(run.device).t(), non_blocking=not blocks)
        run.under_test.synchronize()
        same(f"to pinned memory{how}", host, expected)
        there = torch.zeros(4, 3).to(run.device)
        there.copy_(here.pin_memory().t(), non_blocking=not blocks)
        same(f"from pinned memory{how}", there, expected)
        whole, back = torch.arange(40.0).pin_memory(), torch.zeros(40).pin_memory()
        part = whole[7:19].to(run.device, non_blocking=not blocks)
        back[7:19].copy_(part, non_blocking=not blocks)
        run.under_test.synchronize()
        same(f"from a part of pinned memory{how}", part, torch.arange(7.0, 19.0))
        filled_in = torch.zeros(40)
        filled_in[7:19] = torch.arange(7.0, 19.0)
        same(f"to a part of pinned memory{how}", back, filled_in)


@contract(no_cpu=_NO_CPU)
def factories_pin(run: Run) -> None:
    """Factory functions take pin_memory=True, for every layout that they make."""
    pinned_memory(run, 0)
    for name, tensor in {
        "empty": torch.empty(100, pin_memory=True),
        "ones": torch.ones(10, 10, pin_memory=True),
        "empty_strided": torch.empty_strided((2, 3), (1, 2), pin_memory=True),
        "tensor": torch.tensor([1.0, 2.0], pin_memory=True),
    }.items():
        same(f"is_pinned() of {name}", tensor.is_pinned(), True)
        same(f"device of {name}", tensor.device.type, "cpu")


@contract(no_cpu=_NO_CPU)
def device_memory_is_not_pinned(run: Run) -> None:
    """A device's tensor is not pinned, and cannot be."""
    tensor = on(run.device, 1, 2)
    same("is_pinned()", tensor.is_pinned(), False)
    refuses("pin_memory()", tensor.pin_memory)


@contract(no_cpu=_NO_CPU)
def copies_to_the_device_do_not_lose_order(run: Run) -> None:
    """non_blocking copies from pinned memory come before what is launched after them."""
    for round_ in range(4):
        there = pinned_memory(run, float(round_)).to(run.device, non_blocking=True)
        all_are(f"the sum of round {round_}", long_work(there), 24.0 + round_)


@contract(no_cpu=_NO_CPU)
def copies_to_the_host_arrive(run: Run) -> None:
    """A non_blocking copy into pinned memory is there after synchronize()."""
    host = pinned_memory(run, -1)
    host.copy_(long_work(filled(run.device, 0)), non_blocking=True)
    run.under_test.synchronize()
    all_are("what arrived", host, 24.0)


@contract(no_cpu=_NO_CPU)
def copies_arrive_by_their_event(run: Run) -> None:
    """A non_blocking copy on a side stream is there when an event after it is complete."""
    host, side = pinned_memory(run, -1), torch.Stream(run.device)
    done = long_work(filled(run.device, 0))
    side.wait_stream(current(run.device))
    with side:
        host.copy_(done, non_blocking=True)
        event = side.record_event()
    event.synchronize()
    all_are("what arrived", host, 24.0)


_PARTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "all of it": lambda pinned: pinned,
    "a part behind another": lambda pinned: pinned[7:],
    "every other element": lambda pinned: pinned[1::2],
    "a turned view": lambda pinned: pinned.view(64, -1).t(),
    "a view of another dtype": lambda pinned: pinned.view(torch.int32)[1:].view(torch.float32),
}


@contract(no_cpu=_NO_CPU)
def freed_pinned_memory_is_not_taken_too_early(run: Run) -> None:
    """Pinned memory that dies during a copy of a part is not given away before the copy is done."""
    for name, part in _PARTS.items():
        results = []
        for round_ in range(8 if name == "all of it" else 3):
            pinned = part(pinned_memory(run, float(round_)))
            results.append(pinned.to(run.device, non_blocking=True))
            del pinned
            pinned_memory(run, -5)  # would overwrite what is still being copied
        for round_, result in enumerate(results):
            all_are(f"the copy of {name}, round {round_}", result, float(round_))


@contract(no_cpu=_NO_CPU)
def freed_pinned_memory_is_not_written_to(run: Run) -> None:
    """Pinned memory that dies during a copy into a part of it does not spoil its next owner's."""
    for name, part in _PARTS.items():
        there, kept = part(filled(run.device, 9)), []
        for _ in range(3):
            part(pinned_memory(run, 0)).copy_(there, non_blocking=True)
            kept.append(pinned_memory(run, 5))
        run.under_test.synchronize()
        for pinned in kept:
            all_are(f"pinned memory after copies into {name}", pinned, 5.0)


@contract()
def plain_memory_may_be_used_at_once(run: Run) -> None:
    """After a copy from plain memory, non_blocking or not, its source may be overwritten."""
    for non_blocking in (False, True):
        source = torch.full((_ELEMENTS,), 2.0)
        there = source.to(run.device, non_blocking=non_blocking, copy=True)
        source.fill_(-1)
        all_are("the copy", there, 2.0)


@contract()
def blocking_copies_have_arrived(run: Run) -> None:
    """Tensor.cpu() and item() wait for the work that they read."""
    result = long_work(filled(run.device, 0))
    require(float(result[-1]) == 24.0, f"float() read {float(result[-1])}")
    all_are("cpu()", long_work(result), 48.0)
    here = torch.zeros(_ELEMENTS)
    here.copy_(long_work(result))
    all_are("copy_() into the CPU", here, 48.0)


@contract(no_cpu=_NO_CPU)
def pinned_tensors_do_not_overlap(run: Run) -> None:
    """Each of many live pinned tensors keeps its values while others come and go."""
    pinned_memory(run, 0)
    kept = []
    for number, size in enumerate((1, 3, 16, 17, 100, 511, 512, 513, 4095, 4097) * 2):
        kept.append((number, torch.empty(size, dtype=torch.uint8, pin_memory=True)))
        if number % 4 == 3:
            kept.pop(0)
    for number, tensor in kept:
        tensor.fill_(number)
    for number, tensor in kept:
        same("is_pinned()", tensor.is_pinned(), True)
        same(f"{len(tensor)} bytes", tensor, torch.full((len(tensor),), number, dtype=torch.uint8))


@contract(no_cpu=_NO_CPU)
def nothing_can_be_pinned(run: Run) -> None:
    """A tensor without elements can be pinned, and keeps its shape."""
    pinned_memory(run, 0)
    same("shape", torch.empty(0, 3).pin_memory().shape, torch.Size([0, 3]))
    same("shape of a new one", torch.empty(0, 3, pin_memory=True).shape, torch.Size([0, 3]))


@contract(no_cpu=_NO_CPU)
def memory_that_was_pinned_is_plain_again(run: Run) -> None:
    """Plain memory is not taken for pinned, also right beside and after pinned memory."""
    pinned_memory(run, 0)
    for size in (1, 100, 4096, 1 << 20):
        plain, pinned = torch.ones(size), torch.ones(size).pin_memory()
        same(f"is_pinned() of {size} plain elements", plain.is_pinned(), False)
        same(f"is_pinned() of {size} pinned elements", pinned.is_pinned(), True)
        same("is_pinned() of the last", pinned[-1:].is_pinned(), True)
        same("is_pinned() of a clone", pinned.clone().is_pinned(), False)


@contract(no_cpu=_NO_CPU)
def devices_refuse_to_pin(run: Run) -> None:
    """Factories refuse pin_memory=True for a tensor on the device."""
    device = run.device
    refuses("empty()", lambda: torch.empty(2, device=device, pin_memory=True))
    refuses(
        "empty_strided()", lambda: torch.empty_strided((2,), (1,), device=device, pin_memory=True)
    )


@contract(no_cpu=_NO_CPU)
def pinned_memory_keeps_every_dtype(run: Run) -> None:
    """Pinned tensors of each width go to the device and back, blocking or not, as they are."""
    pinned_memory(run, 0)
    for dtype in (torch.uint8, torch.float16, torch.float32, torch.int64, torch.complex64):
        here = torch.arange(1000).remainder(100).to(dtype).pin_memory()
        for waits in (True, False):
            there = here.to(run.device, non_blocking=not waits)
            back = torch.empty_like(here).pin_memory()
            back.copy_(there, non_blocking=not waits)
            run.under_test.synchronize()
            same(f"{dtype}, non_blocking={not waits}", back, here)


@contract(no_cpu=_NO_CPU)
def threads_know_each_others_pinned_memory(run: Run) -> None:
    """Memory that one thread pinned is pinned for all, and its copies arrive."""
    here, there = pinned_memory(run, 3), in_thread(partial(pinned_memory, run, 4))
    same("is_pinned() here of what another thread pinned", there.is_pinned(), True)
    same("is_pinned() in another thread", in_thread(here.is_pinned), True)
    same("pinned again here", there.pin_memory().data_ptr(), there.data_ptr())
    all_are("a copy of it", there.to(run.device, non_blocking=True), 4.0)


@contract(no_cpu=_NO_CPU)
def parts_of_pinned_memory_are_pinned(run: Run) -> None:
    """Each part of pinned memory is pinned, at its end and at odd addresses, and is copied."""
    pinned_memory(run, 0)
    for elements in (1, 17, 5 << 20):
        whole = (torch.arange(elements) % 251).to(torch.uint8).pin_memory()
        for start in (0, 1, elements // 2 + 1, elements - 1):
            part = whole[start:]
            if not part.numel():
                continue
            what = f"bytes {start} to {elements} of pinned memory"
            same(f"is_pinned() of {what}", part.is_pinned(), True)
            for blocking in (True, False):
                there = part.to(run.device, non_blocking=not blocking)
                back = torch.zeros_like(part).pin_memory()
                back.copy_(there, non_blocking=not blocking)
                run.under_test.synchronize()
                same(f"{what}, {'' if blocking else 'not '}waited for", back, part)
