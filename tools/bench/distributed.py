# SPDX-License-Identifier: BSD-3-Clause
"""Collectives and a parallel training step: npusim beside gloo's own tensors, in two processes.

Both sides take turns in the same two processes, by the wall: what a collective takes is waiting.
"""

import copy
import time

import torch
import torch.distributed as dist
from bench.measure import Quotient, quotient
from bench.plan import QUICK, Efforts, Group, Target
from rank_processes import run_ranks
from torch import nn

DEVICES = ("npusim", "cpu")
THREAD_RANKS, THREAD_CALLS = 8, 100


def _all_reduce(device, count):
    x = torch.ones(count, device=device)

    def call():
        x.fill_(1)
        dist.all_reduce(x)
        return x

    return call


def _fsdp2_step(device, _):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    model = copy.deepcopy(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)).to(device)
    mesh = init_device_mesh(device, (2,))
    for block in model.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rows = torch.randn(8, 32, 64, device=device)

    def call():
        loss = model(rows).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return call


# name -> what makes a call, its argument, calls in a block, target
ROWS = {
    "all-reduce, 16 MiB": (_all_reduce, 1 << 22, 10, 1.05),
    "all-reduce, 1 KiB": (_all_reduce, 256, 100, 1.3),
    "FSDP2 step, transformer of two layers": (_fsdp2_step, 0, 5, 1.1),
}


def in_turns(rank, size, store, row, blocks):
    """Returns the seconds of a call by device, one number per block."""
    make, argument, calls, _ = ROWS[row]
    torch.npusim.set_device(rank)
    dist.init_process_group(
        "cpu:gloo,npusim:simccl", init_method=f"file://{store}", rank=rank, world_size=size
    )
    sides = {device: make(device, argument) for device in DEVICES}
    seconds = {device: [] for device in DEVICES}
    order = list(DEVICES)
    for block in range(-1, blocks):  # the first warms up
        for device in order:
            ready = torch.ones(1)
            dist.all_reduce(ready)
            begun = time.perf_counter()
            for _ in range(calls):
                result = sides[device]()
            result.flatten()[0].item()
            if block >= 0:
                seconds[device].append((time.perf_counter() - begun) / calls)
        order.reverse()
    dist.destroy_process_group()
    return seconds


def many_small_ones():
    """Work of each thread rank."""
    x = torch.ones(256, device="npusim")
    for _ in range(THREAD_CALLS):
        dist.all_reduce(x, op=dist.ReduceOp.MAX)
    x.sum().item()


def timed_threads(_rank, _size, _store, blocks):
    """Returns the seconds of many_small_ones() on all ranks, without making the group."""
    from torch_npusim.testing import run_ranks as run_threads

    def timed():
        many_small_ones()
        dist.barrier()
        begun = time.perf_counter()
        many_small_ones()
        return time.perf_counter() - begun

    return [max(run_threads(timed, THREAD_RANKS)) for _ in range(blocks)]


def collectives(efforts: Efforts) -> list[Group]:
    """Each row beside gloo on CPU tensors, and many ranks as threads in milliseconds."""
    blocks = 3 if efforts is QUICK else 15
    groups = []
    for row, (make, argument, _, target) in ROWS.items():
        name = f"distributed{make.__name__}_{argument}"
        group = Group(name, f"Two processes: {row}", "gloo on CPU", Target(worst=target), 2)
        seconds = run_ranks(in_turns, 2, row, blocks, timeout=240)[0]
        group.rows[row] = quotient(seconds["npusim"], seconds["cpu"])
        groups.append(group)
    threads = Group(
        "distributed_threads", "8 thread ranks", "nothing", Target(worst=500.0), 8, unit="ms"
    )
    (taken,) = run_ranks(timed_threads, 1, blocks, timeout=240)
    ordered = sorted(1e3 * one for one in taken)
    threads.rows["100 all-reduces of 1 KiB"] = Quotient(
        ordered[len(ordered) // 2], ordered[0], ordered[-1], 1e6 * ordered[0], 0.0
    )
    return [*groups, threads]
