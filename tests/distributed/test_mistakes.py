# SPDX-License-Identifier: BSD-3-Clause
"""Programs that would hang, or mix up values, on GPUs: each is told its mistake at once."""

import threading
import warnings
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from rank_processes import run_ranks

from torch_npusim import cuda_alias
from torch_npusim.testing import run_ranks as run_threads
from torch_npusim.testing.ranks import RanksFailed

LIMIT = 60  # seconds of a collective; the tests allow half of it to a whole program


def start(rank, size, store, device=None):
    torch.npusim.set_device(rank if device is None else device)
    dist.init_process_group(
        "simccl",
        init_method=f"file://{store}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=LIMIT),
    )


def crossed_receives():
    rank, size = dist.get_rank(), dist.get_world_size()
    x = torch.ones(4, device="npusim")
    dist.recv(x, (rank - 1) % size)
    dist.send(x, (rank + 1) % size)


def two_groups():
    groups = [dist.new_group([0, 1]) for _ in range(2)]
    x = torch.ones(4, device="npusim")
    for group in groups[:: 1 if dist.get_rank() == 0 else -1]:
        dist.all_reduce(x, group=group)
        x.tolist()


def two_transfers_and_a_collective():
    x = torch.ones(4, device="npusim")
    if dist.get_rank() == 0:
        dist.all_reduce(x)
        x.tolist()
        dist.send(x, 1)
    else:
        dist.recv(x, 0)
        dist.all_reduce(x)


def in_process(rank, size, store, program):
    start(rank, size, store)
    program()


def in_threads(_rank, _size, _store, program, size):
    try:
        run_threads(program, size, timeout=LIMIT)
    except RanksFailed as failed:
        return [(type(one).__name__, str(one)) for _, one in sorted(failed.failures.items())]


@pytest.mark.parametrize(
    ("program", "size", "circle"),
    [
        (crossed_receives, 2, "rank {0} for rank {1}, rank {1} for rank {0}"),
        (
            crossed_receives,
            3,
            "rank {0} for rank {2}, rank {2} for rank {1}, rank {1} for rank {0}",
        ),
        (two_groups, 2, "rank {0} for rank {1}, rank {1} for rank {0}"),
        (two_transfers_and_a_collective, 2, "rank {0} for rank {1}, rank {1} for rank {0}"),
    ],
)
@pytest.mark.parametrize("ranks_are", ["processes", "threads"])
def test_ranks_that_wait_for_each_other_are_told(program, size, circle, ranks_are):
    if ranks_are == "processes":
        told = run_ranks(in_process, size, program, timeout=LIMIT / 2, errors=True)
    else:
        (told,) = run_ranks(in_threads, 1, program, size, timeout=LIMIT / 2)
    assert len(told) == size
    for rank, (kind, text) in enumerate(told):
        assert kind == "DistBackendError"
        names = [(rank + k) % size for k in range(size)]
        assert f"wait for each other, and none can go on: {circle.format(*names)}\n" in text
        assert "test_mistakes.py:" in text


def threads_cross_without_harm(rank, size, store):
    """A thread for each of two groups: what looks like a circle ends when the late threads come."""
    start(rank, size, store)
    groups = [dist.new_group([0, 1]) for _ in range(2)]
    keys = dist.distributed_c10d._get_default_store()
    found = {}

    def work(number):
        torch.npusim.set_device(rank)
        if number == rank:
            with pytest.raises(RuntimeError, match="timeout"):
                keys.wait(["nobody sets it"], timedelta(seconds=0.6))
        with torch.npusim.stream(torch.npusim.Stream()):  # or it would be one: the device's stream
            x = torch.ones(4, device="npusim")
            dist.all_reduce(x, group=groups[number])
            found[number] = x.tolist()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_threads_of_a_program_are_no_circle():
    assert run_ranks(threads_cross_without_harm, 2) == [{0: [2.0] * 4, 1: [2.0] * 4}] * 2


def on_one_device(rank, size, store):
    start(rank, size, store, device=1)
    dist.all_reduce(torch.ones(4, device="npusim"))
    torch.npusim.synchronize()


def test_two_processes_on_one_device_are_refused():
    for kind, text in run_ranks(on_one_device, 2, errors=True, timeout=LIMIT / 2):
        assert kind == "DistBackendError"
        assert (
            "Duplicate GPU detected : rank 0 and rank 1 of group '0' are both on device 1" in text
        )


def gloo_on_one_device(rank, size, store):
    with cuda_alias.scope():
        where = f"file://{store}"
        dist.init_process_group("gloo", init_method=where, rank=rank, world_size=size)
        x = torch.ones(4, device="cuda")
        dist.all_reduce(x)
        found = x.tolist()
        dist.destroy_process_group()
    return found


def test_processes_of_gloo_may_share_a_device():
    assert run_ranks(gloo_on_one_device, 2) == [[2.0] * 4] * 2


def on_the_device_of_all():
    torch.npusim.set_device(0)
    with torch.npusim.stream(torch.npusim.Stream()):
        x = torch.ones(4, device="npusim")
        dist.all_reduce(x)
        return x.tolist()


def test_threads_may_share_a_device():
    assert run_threads(on_the_device_of_all, 2) == [[2.0] * 4] * 2


def swapped(rank, size, store, collective):
    start(rank, size, store)
    a, b = torch.zeros(4, device="npusim"), torch.ones(4, device="npusim")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            if rank == 0:
                collective(a)
                collective(b)
            else:
                collective(b)
                collective(a)
        found = a.tolist()
    dist.destroy_process_group()
    return found, [str(one.message) for one in caught if "different lines" in str(one.message)]


def test_swapped_collectives_of_one_shape_are_told():
    for rank, (values, texts) in enumerate(run_ranks(swapped, 2, dist.all_reduce)):
        assert values == [[2.0, 1.0][rank]] * 4 or values  # mixed up, as on GPUs
        assert len(texts) == 1
        assert "in collective 0 of the group" in texts[0]
        assert texts[0].count("all_reduce(float32[4], sum) at ") == 2


def from_the_first(x):
    dist.broadcast(x, src=0)


def test_branches_for_root_and_others_are_no_mistake():
    assert [texts for _, texts in run_ranks(swapped, 2, from_the_first)] == [[]] * 2
