# SPDX-License-Identifier: BSD-3-Clause
"""When the host waits for other ranks, what the clocks say, and what a failure looks like."""

import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from rank_processes import run_ranks

from torch_npusim.sim import clock

LIMIT = 4  # seconds, of the collectives that are meant to fail


def start(rank, size, store, timeout=60):
    torch.npusim.set_device(rank)
    dist.init_process_group(
        init_method=f"file://{store}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=timeout),
    )
    return dist.distributed_c10d._get_default_store()


def host_goes_on(rank, size, store):
    keys = start(rank, size, store)
    x = torch.ones(4, device="npusim")
    if rank == 0:
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        event = torch.npusim.Event()
        event.record()
        torch.npusim.Stream().wait_event(event)
        keys.set("go", "1")  # rank 1 waits for this before it takes part
    else:
        keys.get("go")
        dist.all_reduce(x)
    return x.tolist()


def test_neither_wait_nor_events_make_the_host_wait():  # (rule D1)
    assert run_ranks(host_goes_on, 2) == [[2.0] * 4] * 2


def skewed(rank, size, store):
    start(rank, size, store)
    x = torch.ones(1 << 20, device="npusim")
    torch.npusim.synchronize()
    times = []
    for late in (1, 0):
        if rank == late:
            clock.advance(10_000_000)
        before = clock.host_time_ns()
        work = dist.all_reduce(x, async_op=True)
        launched = clock.host_time_ns()
        work.wait()
        assert clock.host_time_ns() == launched
        torch.npusim.synchronize()
        times.append((before, clock.host_time_ns()))
    return times


def test_it_starts_when_the_last_rank_is_ready():  # (rule D2)
    first, second = run_ranks(skewed, 2)
    for mine, other in zip(first, second, strict=True):
        assert mine[1] == other[1]
        assert mine[1] > max(mine[0], other[0])
    assert first == run_ranks(skewed, 2)[0]


def disagree(rank, size, store, how):
    start(rank, size, store)
    x = torch.ones(4, device="npusim")
    dist.all_reduce(x)
    torch.npusim.synchronize()
    if rank == 1 and how == "operation":
        dist.broadcast(x, src=0)
    elif rank == 1 and how == "size":
        dist.all_reduce(x[:3])
    elif rank == 1 and how == "type":
        dist.all_reduce(x.to(torch.float16))
    elif rank == 1 and how == "reduction":
        dist.all_reduce(x, op=dist.ReduceOp.MAX)
    else:
        dist.all_reduce(x)
    torch.npusim.synchronize()


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("operation", "rank 1: broadcast(float32[4], root 0)"),
        ("size", "rank 1: all_reduce(float32[3], sum)"),
        ("type", "rank 1: all_reduce(float16[4], sum)"),
        ("reduction", "rank 1: all_reduce(float32[4], max)"),
    ],
)
def test_disagreement_names_both_ranks_and_both_lines(how, expected):  # (rule D4)
    for kind, text in run_ranks(disagree, 2, how, errors=True):
        assert kind == "DistBackendError"
        assert "rank 0: all_reduce(float32[4], sum) at " in text
        assert expected in text
        assert text.count("test_waiting.py:") == 2


def absent(rank, size, store):
    keys = start(rank, size, store, timeout=LIMIT)
    x = torch.ones(4, device="npusim")
    if rank == 1:
        keys.wait(["never"], timedelta(seconds=LIMIT + 2))
    dist.all_reduce(x)
    x.tolist()


def test_a_timeout_names_the_collective_and_what_each_rank_is_in():  # (rule D3)
    kind, text = run_ranks(absent, 2, errors=True)[0]
    assert kind == "DistBackendError"
    assert "Watchdog caught collective operation timeout" in text
    assert "OpType=ALLREDUCE" in text
    assert "rank 0: waits for all_reduce 0 of group '0'" in text
    assert "rank 1: no collective so far" in text


def dies(rank, size, store):
    start(rank, size, store)
    x = torch.ones(4, device="npusim")
    dist.all_reduce(x)
    if rank == 1:
        torch.npusim.synchronize()
        import os

        os._exit(3)
    dist.all_reduce(x)
    torch.npusim.synchronize()


def test_a_rank_that_died_is_an_error_at_once():
    (kind, text), gone = run_ranks(dies, 2, errors=True, timeout=30)
    assert gone is None
    assert kind == "DistBackendError"
    assert "all_reduce 1 of group '0'" in text


def test_a_group_ends_while_threads_of_gloo_want_the_gil(run_script):
    """As with DDP, whose reducer is the last owner of a group (pytorch/pytorch 56297)."""
    done = run_script(
        """
        import contextvars, datetime, sys
        import torch, torch_npusim, torch.distributed as dist
        from torch_npusim import distributed

        made = []
        simccl = distributed.Simccl
        distributed.Simccl = lambda gloo, *rest: made.append(gloo) or simccl(gloo, *rest)
        limit = datetime.timedelta(seconds=20)
        group = distributed.create_backend(dist.HashStore(), 0, 1, limit, "g", [0])
        sys.setswitchinterval(100)  # the GIL stays here until it is let go
        gloo = made.pop()
        for _ in range(100):  # each work keeps a Python object, as those of a backward do
            torch._C._stash_obj_in_tls("context", contextvars.copy_context())
            gloo.allreduce([torch.ones(1)])
        torch._C._stash_obj_in_tls("context", None)
        del gloo
        del group
        print("gone")
        """,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "gone\n"), done.stderr


def ends_in_threads(rank, size, store):
    keys = start(rank, size, store, timeout=20)
    x, y = torch.ones(4, device="npusim"), torch.ones(4, device="npusim")
    if rank == 0:
        keys.wait(["both wait"])
        dist.all_reduce(x)
        torch.npusim.synchronize()
        keys.wait(["the first has ended"], timedelta(seconds=10))
        dist.all_reduce(y)
        return y.tolist()
    dist.all_reduce(x)
    first = torch.npusim.Event()
    first.record()
    dist.all_reduce(y)

    def wait_for_the_first():
        first.synchronize()
        keys.set("the first has ended", "")

    of_all = threading.Thread(target=torch.npusim.synchronize, args=(rank,), daemon=True)
    of_first = threading.Thread(target=wait_for_the_first, daemon=True)
    for thread in (of_all, of_first):
        thread.start()
        time.sleep(0.3)
    keys.set("both wait", "")
    for thread in (of_all, of_first):
        thread.join()
    return y.tolist()


def test_a_thread_goes_on_at_its_end_where_another_waits_for_a_later_one():
    assert run_ranks(ends_in_threads, 2) == [[2.0] * 4] * 2
