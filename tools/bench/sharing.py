# SPDX-License-Identifier: BSD-3-Clause
"""A tensor on its way to another process and an answer back, on the device and in CPU memory."""

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

import torch
from bench.measure import quotient, take_turns, timer
from bench.plan import DEVICE, Efforts, Group, Target

NUMEL = 2**18  # 1 MiB of float32


def _answer(pipe: Connection) -> None:
    torch.set_num_threads(1)
    with torch.no_grad():
        while (tensor := pipe.recv()) is not None:
            tensor[0] = tensor[-1] + 1
            del tensor
            pipe.send(None)


class Sender:
    """Sends tensors to a process that changes their first element, and waits for its word."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def new(self, device: str) -> torch.Tensor:
        """Sends a tensor that nobody has sent before; on the CPU torch copies it."""
        return self.again(torch.ones(NUMEL, device=device))

    def again(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sends a tensor that may have been sent before."""
        self._pipe.send(tensor)
        if not self._pipe.poll(240):
            raise TimeoutError("the other process does not answer")
        self._pipe.recv()
        return tensor


@contextmanager
def sender() -> Iterator[Sender]:
    """Yields a sender whose receiver ends with it."""
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe()
    process = context.Process(target=_answer, args=(other,), daemon=True)
    process.start()
    try:
        yield Sender(pipe)
        pipe.send(None)
        process.join(240)
    finally:
        process.kill()


def sharing(efforts: Efforts) -> list[Group]:
    """1 MiB to another process and its answer, in wall time: two processes take part."""
    group = Group("sharing", "1 MiB to another process", "CPU", Target(worst=2.0), threads=2)
    with sender() as made:
        rows = {
            "a new tensor": {side: f"sender.new({side!r})" for side in (DEVICE, "cpu")},
            "a tensor again": {
                DEVICE: "sender.again(ours)",
                "cpu": "sender.again(theirs)",
            },
        }
        names = {
            "sender": made,
            "ours": torch.ones(NUMEL, device=DEVICE),
            "theirs": torch.ones(NUMEL),
        }
        for row, sides in rows.items():
            timers = {side: timer(text, names, group.threads) for side, text in sides.items()}
            seconds = take_turns(timers, efforts.long)
            group.rows[row] = quotient(seconds[DEVICE], seconds["cpu"])
    return [group]
