# SPDX-License-Identifier: BSD-3-Clause
"""torch.compile on several ranks: losses and weights are those of the same model as it is."""

import pytest
import torch
import torch.distributed as dist
from rank_processes import run_ranks
from repo.sources import ROOT
from torch import nn

COMPILER = {
    "TORCHINDUCTOR_CACHE_DIR": str(ROOT / "build" / "inductor"),
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(x)) * 2)


def parallel(kind, compiled):
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block()).to("npusim")
    if compiled:  # each block, as both wrappers break graphs around what they wrap
        for block in model:
            block.compile()
    if kind == "DDP":
        return nn.parallel.DistributedDataParallel(model)
    from torch.distributed.fsdp import fully_shard

    for block in model:
        fully_shard(block)
    return fully_shard(model)


def trained(model, rank):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1 + rank)
    losses = []
    for _ in range(3):
        loss = model(torch.randn(8, 16).to("npusim")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    weights = [w.full_tensor() if hasattr(w, "full_tensor") else w for w in model.parameters()]
    return losses, [w.detach().cpu() for w in weights]


def rank_of(rank, size, store, kind):
    torch.npusim.set_device(rank)
    dist.init_process_group("simccl", init_method=f"file://{store}", rank=rank, world_size=size)
    plain = trained(parallel(kind, compiled=False), rank)
    from torch_npusim.inductor.compile_report import counted_commands

    with counted_commands() as rows:
        compiled = trained(parallel(kind, compiled=True), rank)
    dist.destroy_process_group()
    return plain, compiled, [name for name in rows if name.startswith("npusim_fused")]


@pytest.mark.parametrize("kind", ["DDP", "FSDP2"])
def test_compiled_training_is_that_of_the_model_as_it_is(kind):
    for plain, compiled, fused in run_ranks(rank_of, 2, kind, environment=COMPILER, timeout=300):
        torch.testing.assert_close(compiled[0], plain[0])
        torch.testing.assert_close(compiled[1], plain[1])
        assert fused
