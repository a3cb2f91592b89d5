# SPDX-License-Identifier: BSD-3-Clause
"""Communication in timelines and profiles, DDP that is compiled, ranks that are like this one."""

import pytest
import torch
import torch.distributed as dist
from rank_processes import run_ranks as run_processes
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from torch_npusim.sim import clock, fabric, timeline


def start(rank, size, store):
    torch.npusim.set_device(rank)
    dist.init_process_group(init_method=f"file://{store}", rank=rank, world_size=size)


def recorded_work(rank, size, store):
    start(rank, size, store)
    x, y = torch.ones(1 << 20, device="npusim"), torch.ones(1 << 20, device="npusim")
    dist.all_reduce(x)
    torch.npusim.synchronize()
    if rank == 1:
        clock.advance(1_000_000)
    with timeline.record() as recorded:
        work = dist.all_reduce(x, async_op=True)
        for _ in range(3):
            y = y * 2
        work.wait()
        x + y
        dist.all_reduce(y, async_op=True)
        torch.npusim.synchronize()
    talks = [row for row in recorded.commands() if row.kind == "collective"]
    shares = recorded.shares(rank)
    spans = [(row.start_ns, row.end_ns) for row in talks]
    after = next(row for row in recorded.commands() if row.name == "aten::add.Tensor")
    return {
        "names": [row.name for row in talks],
        "spans": spans,
        "replayed": recorded.replay().span_ns == recorded.span_ns,
        "after": after.start_ns >= spans[0][1],
        "hidden": shares.hidden_ns,
        "exposed": shares.exposed_ns,
        "sums": shares.hidden_ns + shares.exposed_ns == sum(end - begin for begin, end in spans),
    }


def test_a_collective_is_there_from_when_its_rank_is_ready_until_all_are_done():
    first, second = run_processes(recorded_work, 2)
    for found in (first, second):
        assert found["names"] == ["simccl::all_reduce"] * 2
        assert found["replayed"]
        assert found["after"]
        assert found["sums"]
        assert found["hidden"] > 0
        assert found["exposed"] > 0
    # Rank 0 waits for rank 1, which comes a millisecond later; they end together.
    assert [end for _, end in first["spans"]] == [end for _, end in second["spans"]]
    lengths = [found["spans"][0][1] - found["spans"][0][0] for found in (first, second)]
    assert lengths[0] - lengths[1] == pytest.approx(1_000_000, abs=100_000)


def recorded_edges(rank, size, store):
    """Spans of one collective: awaited, left unfinished, and after others that nobody awaited."""
    start(rank, size, store)
    x = torch.ones(1 << 20, device="npusim")
    dist.all_reduce(x)
    torch.npusim.synchronize()
    spans = []
    for backlog, awaited in ((0, True), (0, False), (3, True)):
        for _ in range(backlog):
            dist.all_reduce(x, async_op=True)
        with timeline.record() as recorded:
            dist.all_reduce(x, async_op=True)
            if awaited:
                torch.npusim.synchronize()
        spans.append(recorded.span_ns)
    return spans


def test_a_recording_has_its_own_communication_whole_and_no_other():
    for spans in run_processes(recorded_edges, 2):
        assert len(set(spans)) == 1
        assert spans[0] > 10_000


def profiled(rank, size, store):
    start(rank, size, store)
    model = DistributedDataParallel(nn.Linear(256, 256, device="npusim"))
    x = torch.ones(8, 256, device="npusim")
    for _ in range(2):
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as found:
            model(x).sum().backward()
            torch.npusim.synchronize()
    averages = {event.key: event for event in found.key_averages()}
    return averages["simccl::all_reduce"].self_device_time_total


def test_the_profiler_shows_the_gradients_on_their_way():
    times = run_processes(profiled, 2)
    assert times[0] == pytest.approx(times[1], abs=1e-6)  # us, differences of large numbers
    assert times[0] > 1


def unfinished(rank, size, store):
    """A profile of a collective that is still on its way when the profile ends."""
    start(rank, size, store)
    x = torch.ones(8, device="npusim")
    with torch.autograd.profiler.profile() as found:
        dist.all_reduce(x)
    names = [event.name for event in found.function_events]
    assert x.tolist() == [2.0] * 8
    return names


def test_gloo_is_not_in_the_profile():
    """Its threads would write to it when nobody waits for them: 8 of 80 profiles ended in that."""
    for names in run_processes(unfinished, 2):
        assert "simccl:all_reduce" in names
        assert not [name for name in names if "gloo" in name]


def compiled(rank, size, store, device):
    if device == "cpu":
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    else:
        start(rank, size, store)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).to(device)
    model = torch.compile(DistributedDataParallel(model))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    losses = []
    for _ in range(2):
        loss = model(torch.randn(4, 8).to(device)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_ddp_is_compiled():
    here = run_processes(compiled, 2, "npusim", timeout=240)
    there = run_processes(compiled, 2, "cpu", timeout=240)
    for mine, other in zip(here, there, strict=True):
        assert mine == pytest.approx(other, rel=1e-5)


def like_this_one(rank, size, store):
    """A thousand ranks in this process: values, and times of the fabric."""
    torch.npusim.set_device(0)
    dist.init_process_group("uniform", store=dist.HashStore(), rank=3, world_size=1024)
    fabric.use("dgx-h100")
    x = torch.full((1024, 4), 2.0, device="npusim")
    torch.npusim.synchronize()
    before = clock.host_time_ns()
    dist.all_reduce(x)
    torch.npusim.synchronize()
    took = clock.host_time_ns() - before
    mean = torch.full((4,), 5.0, device="npusim")
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    gathered = torch.empty(1024, device="npusim")
    dist.all_gather_into_tensor(gathered, torch.full((1,), 7.0, device="npusim"))
    scattered = torch.empty(1, device="npusim")
    dist.reduce_scatter_tensor(scattered, torch.arange(1024.0, device="npusim"))
    group = dist.new_group([3, 11])
    dist.barrier(group)
    dist.all_reduce(gathered, group=group)
    model_us = fabric.routes("dgx-h100", "all_reduce", ranks=1024, size=x.nbytes)[0].microseconds
    return (
        x.unique().tolist(),
        mean.tolist(),
        gathered.unique().tolist(),
        scattered.tolist(),
        took / 1e3 / model_us,
    )


def test_a_thousand_ranks_that_are_like_this_one():
    (found,) = run_processes(like_this_one, 1)
    assert found[:4] == ([2048.0], [5.0] * 4, [14.0], [3 * 1024.0])
    assert 1 <= found[4] < 1.2
