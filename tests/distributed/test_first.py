# SPDX-License-Identifier: BSD-3-Clause
"""simccl from end to end: two processes, a few collectives, DDP beside gloo on CPU."""

import warnings

import pytest
import torch
import torch.distributed as dist
from rank_processes import run_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

TIMES = ("forward_compute", "backward_compute", "backward_comm")


def start(rank, size, store, backend, device):
    if device != "cpu":
        torch.npusim.set_device(rank)
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=size)


def train(rank, size, store, backend, device):
    start(rank, size, store, backend, device)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
    torch.manual_seed(rank)
    losses = []
    for _ in range(4):
        inputs, targets = torch.randn(16, 8), torch.randn(16, 4)
        loss = nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    clock = None
    if device != "cpu":
        torch.npusim.synchronize()
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # DDP warns of a device that has no timer
            model(inputs.to(device))  # which logs the times of the step before
        times = model._get_ddp_logging_data()
        assert all(times[f"avg_{name}_time"] > 0 for name in TIMES), times
        clock = torch_clock()
    weights = [weight.detach().cpu() for weight in model.parameters()]
    dist.destroy_process_group()
    return losses, weights, clock


def torch_clock():
    from torch_npusim.sim import clock

    return clock.host_time_ns()


@pytest.mark.parametrize("backend", ["simccl", None, "cpu:gloo,npusim:simccl"])
def test_ddp_is_gloos_on_cpu(backend):
    here = run_ranks(train, 2, backend, "npusim")
    there = run_ranks(train, 2, "gloo", "cpu")
    for mine, other in zip(here, there, strict=True):
        assert mine[0] == other[0]
        assert all(torch.equal(a, b) for a, b in zip(mine[1], other[1], strict=True))
    assert here[0][2] == here[1][2]


def meet_again(rank, size, file):
    torch.npusim.set_device(rank)
    store = dist.FileStore(file, size)
    sums = []
    for turn in range(3):
        dist.init_process_group(store=store, rank=rank, world_size=size)
        one = torch.full((1,), float(rank + turn), device="npusim")
        dist.all_reduce(one, group=dist.new_group())
        sums.append(one.item())
        dist.destroy_process_group()
    return sums


def test_a_store_serves_one_group_after_the_other():
    assert run_ranks(meet_again, 2) == [[1.0, 3.0, 5.0]] * 2
