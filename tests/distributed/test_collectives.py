# SPDX-License-Identifier: BSD-3-Clause
"""Collectives that gloo has not, beside arithmetic; groups and refusals.

Random programs beside gloo are tests/search/collectives.py.
"""

import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as differentiable
from rank_processes import run_ranks
from torch.distributed import ReduceOp
from torch.distributed import _functional_collectives as functional

from torch_npusim.testing import run_ranks as run_threads


def start(rank, size, store, backend, device):
    if device == "npusim":
        torch.npusim.set_device(rank)
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=size)


def values(rank, dtype, device, count=6):
    return (torch.arange(count) + 2 * rank + 1).to(dtype).to(device)


def as_threads(_rank, _size, _store, ranks, function, *arguments):
    return run_threads(function, ranks, *arguments)


def beside_arithmetic():
    rank, size, device = dist.get_rank(), dist.get_world_size(), "npusim"

    def made(dtype=torch.float32, count=6):
        return values(rank, dtype, device, count)

    def total(dtype=torch.float32, count=6):
        return sum(values(k, dtype, "cpu", count) for k in range(size))

    x = made()
    dist.all_reduce(x, op=dist._make_nccl_premul_sum(0.5))
    assert torch.equal(x.cpu(), total() * 0.5)
    part = torch.empty(3, device=device)
    before = made(count=3 * size)
    kept = before.clone()
    dist.reduce_scatter_tensor(part, before, op=ReduceOp.AVG)
    assert torch.equal(before, kept)
    torch.testing.assert_close(part.cpu(), (total(count=3 * size) / size).chunk(size)[rank])

    x = torch.tensor([-1 - rank, 8 + rank], dtype=torch.int32, device=device)
    dist.all_reduce(x, op=ReduceOp.AVG)  # towards zero, as NCCL divides integers
    assert x.tolist() == [int(-1 - (size - 1) / 2), int(8 + (size - 1) / 2)]

    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        x = made().to(dtype)
        wanted = sum(values(k, torch.float32, "cpu").to(dtype).float() for k in range(size))
        dist.all_reduce(x)
        assert torch.equal(x.cpu().float(), wanted.to(dtype).float())
    x = torch.tensor([rank == 0, False], device=device)
    dist.all_reduce(x)
    assert x.tolist() == [True, False]
    x = torch.view_as_complex(made().view(3, 2))
    dist.all_reduce(x)
    assert torch.equal(torch.view_as_real(x).view(-1).cpu(), total())
    x = made(torch.int16)
    dist.broadcast(x, src=0)
    assert torch.equal(x.cpu(), values(0, torch.int16, "cpu"))

    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": k} for k in range(size)]
    objects = [rank, "x"]
    dist.broadcast_object_list(objects, src=1, device=torch.device("npusim", rank))
    assert objects == [1, "x"]

    x = functional.all_reduce(made(), "sum", dist.group.WORLD)
    assert torch.equal(x.cpu(), total())
    x = functional.all_gather_tensor(made(), 0, dist.group.WORLD)
    assert x.shape == (6 * size,)
    x = made().requires_grad_()
    (differentiable.all_reduce(x) * (rank + 1)).sum().backward()
    assert x.grad.tolist() == [sum(k + 1.0 for k in range(size))] * 6

    future = dist.all_reduce(x := made(), async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2).wait()
    assert torch.equal(doubled.cpu(), total() * 2)
    # One tensor of all ranks, as NCCL's: hooks of DDP that quantize index it so.
    parts = [torch.empty_like(x) for _ in range(size)]
    future = dist.all_gather(parts, made(), async_op=True).get_future()
    dist.all_reduce(parts[0], async_op=True).wait()  # which comes later
    (gathered,) = future.wait()
    assert gathered.shape == (size, 6)
    assert torch.equal(gathered[rank], made())
    assert torch.equal(gathered.sum(0).cpu(), total())
    work = dist.all_gather(parts, made(), async_op=True)
    dist.all_reduce(x)
    assert torch.equal(work.get_future().wait()[0][rank], made())

    dist.barrier()


def as_process(rank, size, store, function):
    start(rank, size, store, "cpu:gloo,npusim:simccl", "npusim")
    function()
    dist.destroy_process_group()


@pytest.mark.parametrize("size", [2, 3])
def test_what_gloo_has_not(size):
    run_ranks(as_process, size, beside_arithmetic, timeout=30)


@pytest.mark.parametrize("size", [2, 3])
def test_what_gloo_has_not_in_threads(size):
    run_ranks(as_threads, 1, size, beside_arithmetic, timeout=30)


def part_with_nans(rank, size, store):
    start(rank, size, store, "npusim:simccl", "npusim")
    dist.group.WORLD.bound_device_id = torch.device("npusim", rank)
    dist.group.WORLD._get_backend(torch.device("npusim"))._set_enable_nan_check(True)
    part = dist.split_group(split_ranks=[list(range(size))])
    with pytest.raises(RuntimeError, match="NaN"):
        dist.all_reduce(torch.full((2,), float("nan"), device="npusim"), group=part)


def test_a_part_of_a_group_has_its_checks():
    run_ranks(part_with_nans, 2)


def parts_of_a_group(rank, size, store):
    start(rank, size, store, "simccl", "npusim")
    dist.barrier()  # rank 1 ends at once, and gloo may not be connected to it everywhere yet
    device = torch.device("npusim", rank)
    world = dist.group.WORLD
    world.bound_device_id = device
    pair = dist.split_group(world, [[0, 2]])
    if rank == 1:
        assert pair in (None, dist.GroupMember.NON_GROUP_MEMBER)  # the latter from 2.14 on
        return None
    assert dist.get_process_group_ranks(pair) == [0, 2]
    assert pair.bound_device_id == device
    alone = dist.split_group(pair, [[0], [1]], group_desc="alone")  # ranks in the pair
    assert dist.get_process_group_ranks(alone) == [rank]
    found = []
    for group in (pair, alone):
        x = torch.full((2,), rank + 1.0, device=device)
        dist.all_reduce(x, group=group)
        found += x.tolist()
    return found


def test_groups_are_split():
    assert run_ranks(parts_of_a_group, 3) == [[4, 4, 1, 1], None, [4, 4, 3, 3]]


def refused(rank, size, store):
    start(rank, size, store, "simccl", "npusim")
    x = torch.ones(4, 4, device="npusim")
    with pytest.raises(ValueError, match="Tensors must be contiguous"):
        dist.all_reduce(x.t()[:2])
    with pytest.raises(ValueError, match="Tensors must be contiguous"):
        dist.send(x[:, :2], 1 - rank)
    with pytest.raises(TypeError, match="not supported for simccl process group"):
        dist.all_reduce(torch.ones(2, dtype=torch.int16, device="npusim"))
    with pytest.raises(TypeError, match="boolean"):
        dist.all_reduce(torch.ones(2, dtype=torch.bool, device="npusim"), op=ReduceOp.AVG)
    with pytest.raises(ValueError, match="BAND"):
        dist.all_reduce(torch.ones(2, dtype=torch.int32, device="npusim"), op=ReduceOp.BAND)
    with pytest.raises(dist.DistBackendError, match="within batch_isend_irecv"):
        dist.isend(x, rank)
    with pytest.raises(dist.DistBackendError, match="with one end only"):
        dist.batch_isend_irecv([dist.P2POp(dist.isend, x, rank)])
    with pytest.raises(RuntimeError, match="recvAnysource"):
        dist.recv(x)
    with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
        dist.all_reduce(torch.ones(2))
    dist.all_reduce(x)
    assert x.tolist() == [[2.0] * 4] * 4


def test_what_nccl_refuses_is_refused_and_loses_nothing():
    run_ranks(refused, 2)


def test_gloo_on_npusim_is_refused_with_what_to_write(tmp_path):
    with pytest.raises(ValueError, match="'cpu:gloo,npusim:simccl'"):
        dist.init_process_group(
            "cpu:gloo,npusim:gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
        )


def fake(rank, size, store):
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=3, world_size=1024, store=FakeStore())
    x = torch.ones(3, device="npusim")
    dist.all_reduce(x)
    return dist.get_world_size(), x.device.type


def test_the_fake_group_takes_the_device():
    assert run_ranks(fake, 1) == [(1024, "npusim")]
