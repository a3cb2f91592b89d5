# SPDX-License-Identifier: BSD-3-Clause
"""Section allocation: what operators, layers and optimizers take, give back and save."""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator
from typing import Any, Callable

from .batches import Question, batch
from .block_programs import ACTIONS, begin_history, history
from .device import backward, device, shape
from .layers import layer, layers
from .operators import called, described, one_per_operator


def sizes_of(entries: list[list[int]]) -> list[int]:
    """Returns allocations as bytes and frees as -1 - (how many allocations ago)."""
    made: list[int] = []
    live: dict[int, int] = {}
    count = 0
    for action, address, size, _, _ in entries:
        if ACTIONS[action] == "alloc":
            live[address] = count
            count += 1
            made.append(size)
        elif ACTIONS[action] == "free_requested" and address in live:
            made.append(live.pop(address) - count)
    return made


def listed(steps: list[Callable[[], Any]]) -> list[list[int]]:
    """Returns what each of the steps allocates and frees, results kept until the end."""
    import torch

    kept = []
    gc.collect()
    gc.disable()  # else its turns decide what is freed when
    torch.cuda.synchronize()
    begin_history()
    ends = []
    try:
        for step in steps:
            kept.append(step())
            torch.cuda.synchronize()
            ends.append(len(history()["entries"]))
        entries = history()["entries"]
    finally:
        torch.cuda.memory._record_memory_history(None)
        gc.enable()
    found = []
    for begin, end in [(0, ends[0])] + [(ends[i], ends[i + 1]) for i in range(len(ends) - 1)]:
        found.append(sizes_of(entries[begin:end]))
    return found


def taken(call: Callable[[], Any], text: str) -> Any:
    """Returns what a call saves for backward, and what both allocate and free."""
    import torch

    saved: list[str] = []

    def pack(tensor: Any) -> Any:
        saved.append(shape(tensor))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        first = call()
    backward(first)
    del first
    made: list[Any] = []
    found = listed([lambda: made.append(call()), lambda: backward(made[0])])
    return {"call": text, "saved": saved, "forward": found[0], "backward": found[1]}


def _temporaries(name: str, sample: Any) -> Any:
    return taken(called(name, sample, grad=True), described(name, sample))


@batch("allocation", "operators", shuffled=True)
def _temporary_questions() -> Iterator[Question]:
    yield from one_per_operator("lists", _temporaries)


@batch("allocation", "layers")
def _layer_questions() -> Iterator[Question]:
    def ask(text: str) -> Any:
        call = layer(text)
        backward(call())
        return taken(call, text)

    for name, text in layers().items():
        yield f"layers|{name}", functools.partial(ask, text)


@batch("allocation", "outside", alone=True, timed=True)
def _outside_questions() -> Iterator[Question]:
    import torch

    def outside(text: str) -> Any:
        torch.cuda.init()
        torch.empty(1, device=device())
        eval(text, {"torch": torch})
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        return int(total - free - torch.cuda.memory_reserved())

    image = "torch.ones(1, 8, 32, 32, device='cuda')"
    programs = {
        "context": "None",
        "product": "torch.ones(64, 64, device='cuda') @ torch.ones(64, 64, device='cuda')",
        "convolution": f"torch.nn.functional.conv2d({image}, torch.ones(8, 8, 3, 3, device='cuda'))",
        "random": "torch.randn(1000, device='cuda').sort()",
    }
    for name, text in programs.items():
        yield f"outside|{name}", functools.partial(outside, text)
