# SPDX-License-Identifier: BSD-3-Clause
"""Several ranks in one process: a thread each, with a device each.

    >>> import torch, torch.distributed as dist
    >>> from torch_npusim.testing import run_ranks
    >>> def total():
    ...     x = torch.full((1,), float(dist.get_rank()), device="npusim")
    ...     dist.all_reduce(x)
    ...     return x.item()
    >>> run_ranks(total, 2)
    [1.0, 1.0]

So a test of parallel code takes what the code takes, without what starting processes takes. The
default group and the device are the rank's own, and autograd runs on its thread. The ranks share
the generator of the host and the virtual clock: times mean nothing here.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from torch_npusim import npusim
from torch_npusim._after_import import after_import
from torch_npusim.patches import Changes

__all__ = ["RanksFailed", "run_ranks"]

_one_at_a_time = threading.Lock()


class RanksFailed(RuntimeError):
    """Some ranks raised, or did not end.

    Attributes:
        failures: The exception of each rank; a rank that did not end has a TimeoutError.
    """

    def __init__(self, failures: dict[int, BaseException]) -> None:
        lines = [
            f"rank {rank}: {type(failure).__name__}: {failure}"
            for rank, failure in sorted(failures.items())
        ]
        super().__init__("\n".join(lines))
        self.failures = failures


def run_ranks(
    function: Callable[..., Any],
    ranks: int,
    *arguments: Any,
    timeout: float = 60.0,
    backend: str = "cpu:gloo,npusim:simccl",
) -> list[Any]:
    """Runs `function(*arguments)` as every rank of a group of `ranks` and returns the results.

    Args:
        function: Finds torch.distributed initialized and its device current.
        ranks: Number of ranks; each takes the device of its number.
        *arguments: The same objects for all ranks.
        timeout: Limit in seconds, of each collective and of the whole.
        backend: Of torch.distributed, as init_process_group() takes it.

    Returns:
        One result per rank, in order.

    Raises:
        ValueError: If there are fewer devices than ranks.
        RanksFailed: If a rank raises or does not end in time; the cause is the first rank's.
        RuntimeError: If a process group is initialized, or another run is under way.
    """
    if not 1 <= ranks <= npusim.device_count():
        raise ValueError(
            f"{ranks} ranks need as many devices, and there are {npusim.device_count()}; set "
            f"NPUSIM_DEVICE_COUNT before torch_npusim is imported"
        )
    if dist.is_initialized():
        raise RuntimeError("run_ranks() makes the default group; destroy_process_group() first")
    if not _one_at_a_time.acquire(blocking=False):
        raise RuntimeError("run_ranks() is under way already, on another thread or further out")
    try:
        return _run(function, ranks, arguments, timeout, backend)
    finally:
        _one_at_a_time.release()


def _run(
    function: Callable[..., Any],
    ranks: int,
    arguments: tuple[Any, ...],
    timeout: float,
    backend: str,
) -> list[Any]:
    from torch.distributed import distributed_c10d
    from torch.testing._internal.distributed.multi_threaded_pg import ThreadLocalWorld

    store = dist.HashStore()  # type: ignore[attr-defined]
    results: list[Any] = [None] * ranks
    failures: dict[int, BaseException] = {}

    def be_rank(rank: int) -> None:
        try:
            npusim.set_device(rank)
            with torch.autograd.set_multithreading_enabled(False):
                dist.init_process_group(
                    backend,
                    store=store,
                    rank=rank,
                    world_size=ranks,
                    timeout=timedelta(seconds=timeout),
                )
                try:
                    results[rank] = function(*arguments)
                    npusim.synchronize()
                finally:
                    dist.destroy_process_group()
        except BaseException as failure:  # of whatever kind: the caller is another thread
            failures[rank] = failure

    changes = Changes()
    after_import(
        "torch.distributed.tensor._sharding_prop", lambda: _one_fake_mode_at_a_time(changes)
    )
    changes.set(distributed_c10d, "_world", ThreadLocalWorld())
    _one_active_ddp_per_thread(changes)
    torch._C._distributed_c10d._set_thread_isolation_mode(True)  # type: ignore[attr-defined]
    threads = [
        threading.Thread(target=be_rank, args=(rank,), name=f"rank {rank}", daemon=True)
        for rank in range(ranks)
    ]
    try:
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + timeout
        for rank, thread in enumerate(threads):
            thread.join(max(0.1, deadline - time.monotonic()))
            if thread.is_alive():
                failures.setdefault(rank, TimeoutError(f"still running after {timeout} s"))
    finally:
        torch._C._distributed_c10d._set_thread_isolation_mode(False)  # type: ignore[attr-defined]
        changes.undo()
    if failures:
        raise RanksFailed(failures) from failures[min(failures)]
    return results


def _one_active_ddp_per_thread(changes: Changes) -> None:
    """A forward of DDP restores the module that was active: another rank's, which then stays."""
    from torch.nn.parallel import DistributedDataParallel

    active = threading.local()

    @contextmanager
    @torch._disable_dynamo(recursive=False)  # type: ignore[attr-defined]
    def inside(module: DistributedDataParallel) -> Iterator[None]:
        before = getattr(active, "module", None)
        active.module = module
        try:
            yield
        finally:
            active.module = before

    def get(cls: type[DistributedDataParallel]) -> DistributedDataParallel | None:
        module: DistributedDataParallel | None = getattr(active, "module", None)
        return module or cls._active_ddp_module

    changes.set(DistributedDataParallel, "_inside_ddp_forward", inside)
    changes.set(DistributedDataParallel, "_get_active_ddp_module", classmethod(get))


def _one_fake_mode_at_a_time(changes: Changes) -> None:
    """A fake mode sets a flag of the process while DTensor asks it; torch's own lock, if any."""
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    changes.set(ShardingPropagator, "_fake_mode_lock", threading.RLock())
