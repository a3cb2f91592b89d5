# SPDX-License-Identifier: BSD-3-Clause
"""Ranks as threads of one process."""

import os
import threading
from datetime import timedelta
from importlib import import_module

import pytest
import torch
import torch.distributed as dist
from rank_processes import run_ranks as run_processes
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from torch_npusim import _C, patches
from torch_npusim.testing.ranks import RanksFailed, run_ranks


def summed():
    x = torch.full((4,), float(dist.get_rank()), device="npusim")
    dist.all_reduce(x)
    return x.tolist(), x.device.index


def trained(kind):
    torch.manual_seed(0) if dist.get_rank() == 0 else None
    dist.barrier()
    torch.npusim.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 16, device="npusim"), nn.Linear(16, 4, device="npusim"))
    if kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=init_device_mesh("npusim", (dist.get_world_size(),)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.full((2, 8), 1.0 + dist.get_rank(), device="npusim")
    for _ in range(2):
        model(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [
        (w.full_tensor() if hasattr(w, "full_tensor") else w).detach().cpu()
        for w in model.parameters()
    ]


def in_threads(rank, size, store):
    with open(f"{store}.errors", "w+") as errors:
        os.dup2(errors.fileno(), 2)
        results = {"sum": run_ranks(summed, 8)}
        for kind in ("ddp", "fsdp2"):
            results[kind] = run_ranks(trained, 4, kind)
        errors.seek(0)
        return results | {"errors": errors.read()}


def test_collectives_ddp_and_fsdp2():
    (results,) = run_processes(in_threads, 1)
    assert "hooks" not in results["errors"]
    assert results["sum"] == [([28.0] * 4, k) for k in range(8)]
    for kind in ("ddp", "fsdp2"):
        first = results[kind][0]
        for other in results[kind][1:]:
            assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    for a, b in zip(results["ddp"][0], results["fsdp2"][0], strict=True):
        torch.testing.assert_close(a, b)


def mlp():
    torch.npusim.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 16, device="npusim"), nn.Linear(16, 4, device="npusim"))


def step(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    loss = model(torch.ones(2, 8, device="npusim")).square().sum()
    loss.backward()
    optimizer.step()
    whole = (w.full_tensor() if hasattr(w, "full_tensor") else w for w in model.parameters())
    return loss.item(), [w.detach().cpu() for w in whole]


def tensor_parallel(sharded):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    size = dist.get_world_size()
    shape = (2, size // 2) if sharded else (1, size)
    mesh = init_device_mesh("npusim", shape, mesh_dim_names=("shards", "parts"))
    model = mlp()
    parallelize_module(model, mesh["parts"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    if sharded:
        fully_shard(model, mesh=mesh["shards"])
    return step(model)


def in_tensor_parallel_threads(rank, size, store):
    return step(mlp()), run_ranks(tensor_parallel, 2, False), run_ranks(tensor_parallel, 4, True)


def test_tensor_parallel_alone_and_in_fsdp2():
    """DTensor asks fake tensors, whose cache once had the device of another rank."""
    ((expected, *runs),) = run_processes(in_tensor_parallel_threads, 1)
    for found in (result for run in runs for result in run):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)  # partial sums


SHARDING = "torch.distributed.tensor:DTensor._op_dispatcher.sharding_propagator.op_strategy_funcs"


def split_attention():
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("npusim", (2,))
    torch.npusim.manual_seed(3)
    operands = [torch.randn(4, 8, 16, 8, device="npusim") for _ in range(3)]
    masks = [None, *(torch.randn(shape, device="npusim") for shape in ((4, 1, 16, 16), (16, 16)))]
    attend = nn.functional.scaled_dot_product_attention
    for mask in masks:
        plain = [t.clone().requires_grad_() for t in operands]
        expected = attend(*plain, mask)
        expected.square().sum().backward()
        for way in (Shard(0), Shard(1), Replicate()):
            parts = [distribute_tensor(t, mesh, [way]).requires_grad_() for t in operands]
            like = way if mask is not None and mask.ndim > 2 and way == Shard(0) else Replicate()
            found = attend(*parts, None if mask is None else distribute_tensor(mask, mesh, [like]))
            assert found.placements == (way,)
            found.square().sum().backward()
            torch.testing.assert_close(found.full_tensor(), expected)
            for part, t in zip(parts, plain, strict=True):
                torch.testing.assert_close(part.grad.full_tensor(), t.grad)


def in_split_attention(rank, size, store):
    return run_ranks(split_attention, 2)


def test_attention_is_split_by_batch_and_by_heads():
    run_processes(in_split_attention, 1)
    import_module("torch.distributed.tensor")
    own = patches.original(SHARDING)
    assert set(own.values()) == {patches.MISSING}, "DTensor has its own: the patch can go"


def many_groups():
    for _ in range(40):
        group = dist.new_group(list(range(8)))
    x = torch.ones(1, device="npusim")
    dist.all_reduce(x, group=group)
    return x.item()


def in_many_groups(rank, size, store):
    return [run_ranks(many_groups, 8, backend="npusim:simccl") for _ in range(3)]


def test_groups_that_all_ranks_make_at_once():
    """pybind11 notes each backend in a table that the GIL guards; it was filled without."""
    assert run_processes(in_many_groups, 1) == [[[8.0] * 8] * 3]


def one_stays_away():
    if dist.get_rank() != 1:
        dist.new_group([0, 1, 2], timeout=timedelta(seconds=1))


def in_an_unfinished_group(rank, size, store):
    try:
        run_ranks(one_stays_away, 3, backend="npusim:simccl")
    except RanksFailed as failed:
        return {rank: str(failure) for rank, failure in failed.failures.items()}


def test_a_group_that_a_rank_does_not_come_to_says_so():
    (failures,) = run_processes(in_an_unfinished_group, 1)
    assert set(failures) == {0, 2}
    assert all("of the 3 ranks of a group only 2 came" in text for text in failures.values())


def barrier_comes_first():
    torch.npusim.set_device(0)
    dist.barrier()


def test_a_barrier_takes_the_device_of_its_rank():
    """As with NCCL; on the current one, ranks before set_device() would share a device."""
    before = len(_C.communicators())
    run_ranks(barrier_comes_first, 2, backend="simccl")
    assert sorted(_C.communicators()[before:]) == [(0, 2), (1, 2)]


def one_is_late(late):
    x = torch.ones(4, device="npusim")
    if dist.get_rank() == 1:
        late.wait(60)
        return None
    group = dist.group.WORLD
    work = dist.all_reduce(x, async_op=True)
    aborting = threading.Thread(target=group.abort)
    aborting.start()
    work.wait()
    with pytest.warns(UserWarning, match="all_reduce 0 of group .* was aborted"):
        x.cpu()
    aborting.join()
    assert not work.is_success()
    with pytest.raises(dist.DistBackendError, match="was aborted"):
        dist.all_reduce(x)
    late.set()
    return x.shape


def test_an_abort_ends_the_wait_of_its_rank():
    """As on CUDA the wait raises nothing; results are undefined."""
    late = threading.Event()
    assert run_ranks(one_is_late, 2, late, backend="simccl", timeout=8)[0] == (4,)


class Crossing(nn.Linear):
    """Rank 0 enters first and leaves first."""

    def __init__(self, first, second, left):
        super().__init__(2, 2, device="npusim")
        self.events = first, second, left

    def forward(self, x):
        first, second, left = self.events
        (first if dist.get_rank() == 0 else second).set()
        (second if dist.get_rank() == 0 else left).wait(30)
        return super().forward(x)


def crosses(first, second, left):
    model = nn.parallel.DistributedDataParallel(Crossing(first, second, left))
    if dist.get_rank() == 1:
        first.wait(30)
    model(torch.ones(2, 2, device="npusim"))
    left.set()


def test_forwards_of_ddp_that_cross_keep_no_model():
    run_ranks(crosses, 2, *(threading.Event() for _ in range(3)))
    assert nn.parallel.DistributedDataParallel._active_ddp_module is None


def one_raises():
    if dist.get_rank() == 1:
        raise KeyError("lost")


def test_what_a_rank_raises_reaches_the_caller():
    with pytest.raises(RanksFailed, match="rank 1: KeyError: 'lost'") as raised:
        run_ranks(one_raises, 2)
    assert list(raised.value.failures) == [1]
    assert not dist.is_initialized()
    assert run_ranks(dist.get_rank, 2) == [0, 1]


def test_more_ranks_than_devices_are_refused():
    with pytest.raises(ValueError, match="65 ranks need as many devices"):
        run_ranks(dist.get_rank, 65)
