# SPDX-License-Identifier: BSD-3-Clause
"""Programs around collectives: races, the pattern that cannot work here, the alias, torchrun."""

import textwrap
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from processes import python
from rank_processes import run_ranks
from repo.sources import ROOT


def start(rank, size, store, timeout=60):
    torch.npusim.set_device(rank)
    limit = timedelta(seconds=timeout)
    dist.init_process_group(
        init_method=f"file://{store}", rank=rank, world_size=size, timeout=limit
    )
    return dist.distributed_c10d._get_default_store()


def raced(rank, size, store, how):
    from torch_npusim.sim import races

    start(rank, size, store)
    x = torch.ones(64, device="npusim")
    with races.record() as recorded:
        work = dist.all_reduce(x, async_op=True)
        if how == "waits":
            work.wait()
        y = x * 2
        if how == "waits late":
            work.wait()
        y.sum().item()
    work.wait()
    return [(race.missing, race.first.name, race.second.name) for race in recorded.races]


@pytest.mark.parametrize("how", ["never waits", "waits late"])
def test_a_tensor_that_is_read_before_wait_is_a_race(how):
    for found in run_ranks(raced, 2, how):
        assert found == [("wait_stream", "simccl::all_reduce", "aten::mul.Tensor")]


def test_a_tensor_that_is_read_after_wait_is_none():
    assert run_ranks(raced, 2, "waits") == [[], []]


def runs_past(rank, size, store):
    keys = start(rank, size, store, timeout=4)
    x = torch.ones(4, device="npusim")
    if rank == 0:
        dist.all_reduce(x)
        y = x + 1
        keys.set("go", "1")
        return y.tolist()
    keys.wait(["go"], timedelta(seconds=6))
    dist.all_reduce(x)
    return x.tolist()


def test_a_host_that_must_run_past_the_result_ends_within_the_timeout():
    (kind, text), _ = run_ranks(runs_past, 2, errors=True, timeout=30)
    assert kind == "DistBackendError"
    assert "all_reduce 0 of group '0' at " in text
    assert "test_programs.py:" in text


def groups_in_opposite_orders(rank, size, store):
    start(rank, size, store)
    one, other = dist.new_group([0, 1]), dist.new_group([0, 1])
    x, y = torch.ones(4, device="npusim"), torch.ones(4, device="npusim")
    first, second = ((x, one), (y, other)) if rank == 0 else ((y, other), (x, one))
    works = [dist.all_reduce(t, group=g, async_op=True) for t, g in (first, second)]
    for work in works:
        work.wait()
    return (x + y).tolist()


def test_two_groups_may_be_used_in_either_order():
    assert run_ranks(groups_in_opposite_orders, 2) == [[4.0] * 4] * 2


def both_ways(rank, size, store):
    start(rank, size, store)
    x, y = (
        torch.full((1 << 18,), rank + 1.0, device="npusim"),
        torch.empty(1 << 18, device="npusim"),
    )
    sent = dist.isend(x, 1 - rank)
    received = dist.irecv(y, 1 - rank)
    received.wait()
    sent.wait()
    return y[0].item()


def test_both_ranks_may_send_first():
    assert run_ranks(both_ways, 2) == [2.0, 1.0]


def aliased(rank, size, store, backend):
    import torch_npusim.as_cuda  # noqa: F401

    torch.cuda.set_device(rank)
    bound = torch.device("cuda", rank) if backend else None
    dist.init_process_group(
        backend, init_method=f"file://{store}", rank=rank, world_size=size, device_id=bound
    )
    x = torch.ones(4, device="cuda")
    dist.all_reduce(x)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2).cuda(), [rank])
    model(x).sum().backward()
    dist.barrier(device_ids=[rank])
    name = dist.get_backend()
    group = dist.new_group(backend="gloo")
    host = torch.ones(1)
    dist.all_reduce(host, group=group)
    dist.all_reduce(x, group=group)
    dist.destroy_process_group()
    return name, x.tolist(), host.item()


@pytest.mark.parametrize(("backend", "name"), [("nccl", "nccl"), (None, "undefined")])
def test_nccl_under_the_alias(backend, name):
    for result in run_ranks(aliased, 2, backend):
        assert result[1:] == ([4.0] * 4, 2.0)
        assert result[0] in (name, "nccl")


def test_torchrun(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(
        textwrap.dedent("""
            import os, torch, torch_npusim, torch.distributed as dist
            dist.init_process_group("cpu:gloo,npusim:simccl")
            torch.npusim.set_device(dist.get_rank())
            x = torch.ones(2, device="npusim")
            dist.all_reduce(x)
            # One write: both ranks have the same pipe.
            os.write(1, f"sum {x.tolist()} {dist.get_backend()}\\n".encode())
            dist.destroy_process_group()
        """)
    )
    command = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
    done = python(
        *command,
        "--rdzv-endpoint=localhost:0",
        "--rdzv-backend=c10d",
        script,
        variables={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        timeout=120,
    )
    assert done.stdout.count("sum [2.0, 2.0] ") == 2, done.stdout + done.stderr
    assert "hooks" not in done.stderr
