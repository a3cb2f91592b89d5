# SPDX-License-Identifier: BSD-3-Clause
"""Section steps: small models, eager, in mixed precision, captured and compiled."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Callable

from .allocation import listed
from .batches import Question, batch
from .models import models
from .rates import timed


def offset() -> int:
    """Returns the generator's Philox offset."""
    import torch

    state = torch.cuda.get_rng_state()
    return int.from_bytes(bytes(state.tolist()[8:16]), "little")


@functools.lru_cache(None)
def train(name: str, mode: str) -> dict[str, Any]:
    """Trains a model for a few steps; returns times, peaks, allocations and offsets of one."""
    import torch

    torch.manual_seed(0)
    module, loss = models()[name]()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, capturable=mode == "captured")
    forward = torch.compile(loss) if mode == "compiled" else loss

    def step() -> None:
        optimizer.zero_grad(set_to_none=mode != "captured")
        with torch.autocast("cuda", torch.bfloat16, enabled=mode == "amp"):
            value = forward()
        value.backward()
        optimizer.step()

    side = torch.cuda.Stream()
    if mode == "captured":
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        run: Callable[[], Any] = graph.replay
    else:
        run = step
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = offset()
    run()
    torch.cuda.synchronize()
    found: dict[str, Any] = {
        "offset": offset() - before,
        "peak": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
        "list": listed([run])[0],
        "time": timed(run, inner=2),
    }
    return found


def _step_questions(modes: Iterable[str]) -> Iterator[Question]:
    for name, mode in itertools.product(models(), modes):
        for what in ("time", "peak", "reserved", "list", "offset"):
            key = f"{what}|{name}|{mode}"
            yield key, functools.partial(lambda n, m, w: train(n, m)[w], name, mode, what)


@batch("steps", "trained", limit_s=120, timed=True)
def _steps_trained() -> Iterator[Question]:
    yield from _step_questions(("eager", "amp", "captured"))


@batch("steps", "compiled", limit_s=300, timed=True)
def _steps_compiled() -> Iterator[Question]:
    yield from _step_questions(("compiled",))
