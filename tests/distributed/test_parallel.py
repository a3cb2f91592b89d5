# SPDX-License-Identifier: BSD-3-Clause
"""Ways of training on several ranks: losses and weights are those of gloo on CPU, bit for bit, and
the clocks of all ranks agree."""

import copy

import pytest
import torch
import torch.distributed as dist
from rank_processes import run_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from torch_npusim.sim import clock

STEPS = 3


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


def blocks(width=16, count=2):
    torch.manual_seed(0)
    return nn.Sequential(*[Block(width) for _ in range(count)])


def start(rank, size, store, device, bound=False):
    if device == "npusim":
        torch.npusim.set_device(rank)
    backend = "cpu:gloo,npusim:simccl" if device == "npusim" else "gloo"
    where = torch.device(device, rank) if bound and device == "npusim" else None
    dist.init_process_group(
        backend, init_method=f"file://{store}", rank=rank, world_size=size, device_id=where
    )


def whole(weight):
    return (weight.full_tensor() if hasattr(weight, "full_tensor") else weight).detach().cpu()


def trained(model, device, rank, width=16, dtype=torch.float32):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
    torch.manual_seed(1 + rank)
    losses = []
    for _ in range(STEPS):
        x = torch.randn(8, width).to(device)
        loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, [whole(weight) for weight in model.parameters()]


def ended(result, device):
    time = None
    if device == "npusim":
        dist.all_reduce(torch.zeros(1, device=device))  # a barrier would be gloo's, on CPU
        torch.npusim.synchronize()
        time = clock.host_time_ns()
    dist.destroy_process_group()
    return *result, time


def ddp_variants(rank, size, store, device, options):
    start(rank, size, store, device)
    hook = options.pop("hook", None)
    model = nn.parallel.DistributedDataParallel(blocks().to(device), **options)
    if hook:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        model.register_comm_hook(None, getattr(default_hooks, hook))
    if "static_graph" not in options:
        torch.manual_seed(5 + rank)
        with model.no_sync():
            model(torch.randn(8, 16).to(device)).sum().backward()
    return ended(trained(model, device, rank), device)


def fsdp2(rank, size, store, device, half):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    start(rank, size, store, device)
    mesh = init_device_mesh(device, (size,))
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if half else None, reduce_dtype=torch.float32
    )
    model = blocks().to(device)
    for block in model:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return ended(trained(model, device, rank), device)


def hsdp(rank, size, store, device):
    from torch.distributed.fsdp import fully_shard

    start(rank, size, store, device, bound=True)  # the mesh then splits the group
    mesh = init_device_mesh(device, (2, size // 2), mesh_dim_names=("replicas", "shards"))
    model = blocks().to(device)
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return ended(trained(model, device, rank), device)


def fsdp1(rank, size, store, device):
    from torch.distributed.fsdp import FullyShardedDataParallel

    start(rank, size, store, device)
    device_id = torch.device(device, rank) if device == "npusim" else torch.device("cpu")
    model = FullyShardedDataParallel(blocks().to(device), device_id=device_id, use_orig_params=True)
    losses, _ = trained(model, device, rank)
    with FullyShardedDataParallel.summon_full_params(model):
        weights = [weight.detach().cpu().clone() for weight in model.parameters()]
    return ended((losses, weights), device)


def tensor_parallel(rank, size, store, device, shard_too):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    start(rank, size, store, device)
    shape, names = ((size // 2, 2), ("data", "tensor")) if shard_too else ((size,), ("tensor",))
    mesh = init_device_mesh(device, shape, mesh_dim_names=names)
    model = blocks().to(device)
    for block in model:
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(block, mesh["tensor"], plan)
        if shard_too:
            fully_shard(block, mesh=mesh["data"])
    seed = rank // 2 if shard_too else 0
    return ended(trained(model, device, seed), device)


def pipeline(rank, size, store, device, schedule):
    from torch.distributed import pipelining

    start(rank, size, store, device)
    where = torch.device(device, rank) if device == "npusim" else torch.device("cpu")
    per_rank = 2 if schedule == "ScheduleInterleaved1F1B" else 1
    parts = list(blocks(count=size * per_rank))
    mine = [parts[rank + size * k].to(device) for k in range(per_rank)]
    stages = [
        pipelining.PipelineStage(part, rank + size * k, size * per_rank, where)
        for k, part in enumerate(mine)
    ]
    make = getattr(pipelining, schedule)
    run = make(
        stages if per_rank > 1 else stages[0],
        n_microbatches=4,
        loss_fn=lambda out, target: (out - target).square().mean(),
    )
    torch.manual_seed(3)
    x, target = torch.randn(8, 16).to(device), torch.randn(8, 16).to(device)
    losses = []
    optimizer = torch.optim.SGD([w for part in mine for w in part.parameters()], lr=0.1)
    for _ in range(STEPS):
        found = []
        last = rank == size - 1
        run.step(
            *([x] if rank == 0 else []),
            **({"target": target, "losses": found} if last else {}),
        )
        optimizer.step()
        optimizer.zero_grad()
        losses += [loss.item() for loss in found]
    weights = [weight.detach().cpu() for part in mine for weight in part.parameters()]
    return ended((losses, weights), device)


def sync_batch_norm(rank, size, store, device):
    start(rank, size, store, device)
    torch.manual_seed(0)
    model = nn.SyncBatchNorm.convert_sync_batchnorm(
        nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 4))
    ).to(device)
    model = nn.parallel.DistributedDataParallel(model)
    return ended(trained(model, device, rank), device)


def alike(function, size, *arguments):
    here = run_ranks(function, size, "npusim", *copy.deepcopy(arguments))
    there = run_ranks(function, size, "cpu", *copy.deepcopy(arguments))
    for mine, other in zip(here, there, strict=True):
        assert mine[0] == other[0]
        assert len(mine[1]) == len(other[1])
        assert all(torch.equal(a, b) for a, b in zip(mine[1], other[1], strict=True))
    assert len({result[2] for result in here}) == 1, [result[2] for result in here]
    return here


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"static_graph": True},
        {"find_unused_parameters": True, "gradient_as_bucket_view": True},
        {"hook": "fp16_compress_hook"},
    ],
)
def test_ddp(options):
    alike(ddp_variants, 2, options)


@pytest.mark.parametrize("half", [False, True])
def test_fsdp2(half):
    alike(fsdp2, 2, half)


def test_hsdp_on_four_ranks():
    alike(hsdp, 4)


def test_fsdp1():
    alike(fsdp1, 2)


def test_tensor_parallel():
    alike(tensor_parallel, 2, False)


def test_tensor_parallel_times_fsdp2():
    alike(tensor_parallel, 4, True)


@pytest.mark.parametrize("schedule", ["ScheduleGPipe", "Schedule1F1B", "ScheduleInterleaved1F1B"])
def test_pipeline(schedule):
    alike(pipeline, 2, schedule)


def test_sync_batch_norm_is_batch_norm_of_all():
    here = run_ranks(sync_batch_norm, 2, "npusim")
    assert all(torch.equal(a, b) for a, b in zip(here[0][1], here[1][1], strict=True))


def checkpoints(rank, size, store, folder, asynchronous):
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.fsdp import fully_shard

    start(rank, size, store, "npusim")
    model = blocks().to("npusim")
    fully_shard(model)
    before = [whole(weight) for weight in model.parameters()]
    if asynchronous:
        checkpoint.async_save(model.state_dict(), checkpoint_id=folder).result()
    else:
        checkpoint.save(model.state_dict(), checkpoint_id=folder)
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
    state = model.state_dict()
    checkpoint.load(state, checkpoint_id=folder)
    model.load_state_dict(state)
    after = [whole(weight) for weight in model.parameters()]
    dist.destroy_process_group()
    return all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_checkpoints(tmp_path, asynchronous):
    assert run_ranks(checkpoints, 2, str(tmp_path), asynchronous) == [True, True]


def random_numbers(rank, size, store):
    from torch.distributed.tensor import Shard, rand

    start(rank, size, store, "npusim")
    mesh = init_device_mesh("npusim", (size,))
    torch.manual_seed(7)
    sharded = rand(8, 4, device_mesh=mesh, placements=[Shard(0)]).full_tensor().cpu()
    dist.destroy_process_group()
    return sharded


def test_random_numbers_of_a_dtensor_are_the_same_on_all_ranks():
    first, second = run_ranks(random_numbers, 2)
    assert torch.equal(first, second)
    assert not torch.equal(first[:4], first[4:])
