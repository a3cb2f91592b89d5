# SPDX-License-Identifier: BSD-3-Clause
"""Section collectives: peer access, and collectives by size and protocol."""

from __future__ import annotations

import functools
import itertools
import json
import os
import tempfile
from collections.abc import Iterator
from typing import Any

from .batches import Question, batch
from .privacy import said
from .rates import timed
from .workers import _in_a_fork

COLLECTIVES = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "send")


def _rank(rank: int, ranks: int, folder: str, operation: str, size: int) -> Any:
    """Times a collective of `size` bytes; returns what rank 0 found."""
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl", init_method=f"file://{folder}/store", rank=rank, world_size=ranks
    )
    count = max(size // 4, ranks) // ranks * ranks
    x = torch.ones(count, device=torch.device("cuda", rank))
    part = torch.ones(count // ranks, device=x.device)
    peer = (rank + 1) % ranks

    def send() -> Any:
        if rank == 0:
            dist.send(x, 1)
        elif rank == 1:
            dist.recv(x, 0)

    calls = {
        "all_reduce": lambda: dist.all_reduce(x),
        "broadcast": lambda: dist.broadcast(x, 0),
        "all_gather": lambda: dist.all_gather_into_tensor(x, part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, x),
        "all_to_all": lambda: dist.all_to_all_single(torch.empty_like(x), x),
        "send": send,
    }
    call = calls[operation]
    found = []
    for number in range(8):
        dist.barrier()
        torch.cuda.synchronize()
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        call()
        last.record()
        torch.cuda.synchronize()
        if number > 2:
            found.append(first.elapsed_time(last) * 1e3)
    found.sort()
    del peer
    dist.destroy_process_group()
    return {"us": found[len(found) // 2], "low": found[0], "high": found[-1], "bytes": count * 4}


def _together(ranks: int, operation: str, size: int, env: dict[str, str]) -> Any:
    """Runs a collective in as many processes as ranks."""
    with tempfile.TemporaryDirectory() as folder:
        runners = []
        for rank in range(ranks):
            runner = os.fork()
            if runner == 0:
                os.environ.update(env)
                status = 1
                try:
                    found = _rank(rank, ranks, folder, operation, size)
                    if rank == 0:
                        with open(os.path.join(folder, "found"), "w") as file:
                            json.dump(found, file)
                    status = 0
                except BaseException as error:
                    with open(os.path.join(folder, "failed"), "w") as file:
                        json.dump(said(error), file)
                finally:
                    os._exit(status)
            runners.append(runner)
        for runner in runners:
            os.waitpid(runner, 0)
        for name in ("found", "failed"):
            if os.path.exists(os.path.join(folder, name)):
                with open(os.path.join(folder, name)) as file:
                    answered = json.load(file)
                return answered if name == "found" else {"raised": answered}
    return {"raised": ["RuntimeError", "a rank ended"]}


def _device_count() -> int:
    def ask() -> str:
        import torch

        return str(torch.cuda.device_count())

    return int(_in_a_fork(ask) or 0)


def _peer_questions() -> Iterator[Question]:
    import torch

    def reach(a: int, b: int) -> Any:
        return torch.cuda.can_device_access_peer(a, b)

    def copy(a: int, b: int, size: int) -> Any:
        x = torch.empty(size, dtype=torch.uint8, device=torch.device("cuda", a))
        y = torch.empty(size, dtype=torch.uint8, device=torch.device("cuda", b))
        return timed(lambda: y.copy_(x, non_blocking=True), bytes_=size)

    count = _device_count()
    for a, b in itertools.permutations(range(min(count, 4)), 2):
        yield f"reach|{a}|{b}", functools.partial(reach, a, b)
    if count > 1:
        for size in (1 << 12, 1 << 20, 1 << 26):
            yield f"peer|{size}", functools.partial(copy, 0, 1, size)


def _collective_questions() -> Iterator[Question]:
    count = _device_count()
    for ranks in sorted({2, count} & set(range(2, count + 1))):
        sizes = (1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 27)
        for operation, size in itertools.product(COLLECTIVES, sizes):
            key = f"{operation}|{ranks} ranks|{size}"
            yield key, functools.partial(_together, ranks, operation, size, {})
        for protocol, size in itertools.product(("LL", "LL128", "Simple"), sizes):
            key = f"all_reduce {protocol}|{ranks} ranks|{size}"
            env = {"NCCL_PROTO": protocol}
            yield key, functools.partial(_together, ranks, "all_reduce", size, env)


@batch("collectives", "together", alone=True, limit_s=60, timed=True)
def _collectives_together() -> Iterator[Question]:
    yield from itertools.chain(_peer_questions(), _collective_questions())
