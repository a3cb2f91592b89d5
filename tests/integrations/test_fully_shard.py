# SPDX-License-Identifier: BSD-3-Clause
"""FSDP2 on npusim in one process, over torch's "fake" process group, which moves nothing.

With one rank the numbers are right; with more they are not, but shapes, memory and times are those
of one rank of a large job.
"""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

WIDTH = 256


@pytest.fixture
def mesh_of():
    """Returns a function that gives the mesh of a number of pretended ranks, this one being 0."""

    def make(ranks):
        # "fake" alone knows no device of a backend outside torch.
        dist.init_process_group("cpu:fake,npusim:fake", store=FakeStore(), rank=0, world_size=ranks)
        torch.npusim.set_device(0)
        return init_device_mesh("npusim", (ranks,))

    yield make
    dist.destroy_process_group()


def network():
    torch.manual_seed(2)
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(6)))


def sharded(model, mesh):
    for block in model:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    inputs = torch.linspace(-1, 1, 8 * WIDTH).view(8, WIDTH).to("npusim")
    losses = []
    for _ in range(3):
        loss = model(inputs).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_one_rank_trains_as_the_plain_model_does(mesh_of):
    plain = network().to("npusim")
    model = sharded(network().to("npusim"), mesh_of(1))
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
    assert train(model) == train(plain)
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine.full_tensor(), theirs)


def test_one_rank_of_eight_holds_an_eighth_and_gathers_one_block_at_a_time(mesh_of):
    with torch.device("meta"):
        model = network()
    whole = sum(parameter.nbytes for parameter in model.parameters())
    sharded(model, mesh_of(8))
    before = torch.npusim.memory_allocated()
    model.to_empty(device="npusim")
    held = torch.npusim.memory_allocated() - before
    assert whole / 8 <= held < whole / 8 + 512 * 12

    inputs = torch.zeros(8, WIDTH, device="npusim")
    torch.npusim.reset_peak_memory_stats()
    with torch.no_grad():
        model(inputs)
    # The block that runs, the one that is gathered for later, and what copies in and out need.
    assert torch.npusim.max_memory_allocated() - before < held + 3.5 * whole / 6
