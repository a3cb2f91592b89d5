# SPDX-License-Identifier: BSD-3-Clause
"""Work on the second device while the first is current: where results lie, and what they are."""

from collections.abc import Callable
from functools import partial

import torch

from npusim_conformance.contracts import contract, in_thread, on, other_device, same
from npusim_conformance.properties.base import Run, require

_NO_CPU = "there is one CPU"
Work = Callable[[torch.Tensor], torch.Tensor]

_WORK: dict[str, Work] = {
    "a sum": lambda x: x + x,
    "a sum with a number": lambda x: x + 1,
    "a product of matrices": lambda x: x @ x,
    "a reduction": lambda x: x.sum(),
    "a reduction of rows": lambda x: x.amax(1),
    "sort()": lambda x: x.sort(0)[1],
    "cat()": lambda x: torch.cat([x, x]),
    "stack()": lambda x: torch.stack([x, x]),
    "where()": lambda x: torch.where(x > 3, x, 0.0),
    "an index": lambda x: x[[2, 0]],
    "a mask": lambda x: x[x > 3],
    "nonzero()": lambda x: x.nonzero(),
    "unique()": torch.Tensor.unique,
    "softmax()": lambda x: x.softmax(0),
    "to(dtype)": lambda x: x.to(torch.int64),
    "clone()": torch.Tensor.clone,
    "contiguous()": lambda x: x.t().contiguous(),
    "flip()": lambda x: x.flip(0),
    "pad()": lambda x: torch.nn.functional.pad(x, (1, 1)),
    "zeros_like()": torch.zeros_like,
    "new_ones()": lambda x: x.new_ones(3),
    "a write": lambda x: x.clone().fill_(7),
    "a write to a part": lambda x: x.clone().index_fill_(0, torch.tensor([1]).to(x.device), 7.0),
    "a gradient": lambda x: torch.autograd.grad((x.requires_grad_() ** 2).sum(), x)[0],
}


@contract(no_cpu=_NO_CPU, two_devices=True)
def work_stays_on_its_device(run: Run) -> None:
    """Results lie where their operands lie, with the CPU's values."""
    second, here = other_device(run), torch.arange(9.0).view(3, 3)
    for name, work in _WORK.items():
        got = work(here.to(second))
        same(f"device of {name}", got.device, second)
        same(f"device of the storage of {name}", got.untyped_storage().device, second)
        same(name, got, work(here.clone()))


@contract(no_cpu=_NO_CPU, two_devices=True)
def growing_stays_on_its_device(run: Run) -> None:
    """resize_() of a tensor of the second device takes memory there, whichever is current."""
    second = other_device(run)
    grown = torch.empty(0, device=second).resize_(2)
    same("device", grown.device, second)
    same("device of its storage", grown.untyped_storage().device, second)


@contract(no_cpu=_NO_CPU, two_devices=True)
def memory_of_two_devices_is_two(run: Run) -> None:
    """A write on one device does not show on the other, whichever was copied."""
    second = other_device(run)
    for one, other in ((run.device, second), (second, run.device)):
        there = on(one, 1, 2, 3)
        copied = there.to(other)
        there.fill_(9)
        same(f"the copy on {other}", copied, torch.tensor([1.0, 2.0, 3.0]))
        copied.fill_(8)
        moved = copied.to(one, non_blocking=True)
        copied.fill_(7)
        run.under_test.synchronize()
        same(f"what came back to {one}", moved, torch.full((3,), 8.0))
        same(f"the original on {one}", there, torch.full((3,), 9.0))


def _sum_on(device: torch.device) -> torch.Tensor:
    return (on(device, 1, 2) + 1).cpu()


@contract(no_cpu=_NO_CPU, two_devices=True)
def other_threads_reach_both_devices(run: Run) -> None:
    """A new thread copies to either device and back."""
    for device in (run.device, other_device(run)):
        got = in_thread(partial(_sum_on, device))
        same(f"a sum on {device}", got, torch.tensor([2.0, 3.0]))


@contract(no_cpu=_NO_CPU, two_devices=True, needs=("device", "current_device"))
def no_device_changes_nothing(run: Run) -> None:
    """`with device(None)` leaves the current device."""
    module = run.under_test.module
    for current in (other_device(run), run.device):
        with module.device(current):
            with module.device(None):
                same("inside device(None)", module.current_device(), current.index)
            same("after device(None)", module.current_device(), current.index)


def _is_taken(call: Callable[[], object]) -> bool:
    try:
        call()
    except RuntimeError:
        return False
    return True


@contract(no_cpu=_NO_CPU, two_devices=True)
def operands_of_two_devices_are_refused(run: Run) -> None:
    """Products, indexes and in-place operators refuse operands of two devices."""
    one, other = torch.ones(2, 2).to(run.device), torch.ones(2, 2).to(other_device(run))
    calls: dict[str, Callable[[], object]] = {
        "a product of matrices": lambda: one @ other,
        "add_()": lambda: one.add_(other),
        "where()": lambda: torch.where(one > 0, one, other),
        "out=": lambda: torch.add(one, one, out=other),
    }
    accepted = [what for what, call in calls.items() if _is_taken(call)]
    require(not accepted, f"operands of two devices are taken by {', '.join(accepted)}")
    same("the first operand", one, torch.ones(2, 2))
    same("the second operand", other, torch.ones(2, 2))
