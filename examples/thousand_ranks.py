# SPDX-License-Identifier: BSD-3-Clause
"""One step of a transformer on 1,024 devices, tensor parallel by 8 and FSDP2, in one process.

    NPUSIM_SPEC=h100-sxm python examples/thousand_ranks.py --fabric dgx-h100

The backend "uniform" takes the other ranks to be like this one: they are in no process, and every
collective takes what the fabric says. The printed times are virtual.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional

from torch_npusim import npusim
from torch_npusim.sim import fabric, timeline

TENSOR = 8  # ranks that share each layer: those of a node


class Block(nn.Module):
    """Attention and a feed-forward network, each with a residual."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.query, self.key, self.value, self.out = (nn.Linear(hidden, hidden) for _ in range(4))
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Takes and returns (batch, sequence, hidden)."""
        y = self.norm1(x)
        q, k, v = (
            part(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(-2))
        result: torch.Tensor = x + self.down(functional.gelu(self.up(self.norm2(x))))
        return result


def build(mesh: DeviceMesh, layers: int, hidden: int, heads: int) -> nn.Module:
    """Returns the model, each layer over the ranks of a node and each shard over the nodes."""
    with torch.device("npusim"):
        model = nn.Sequential(*(Block(hidden, heads // TENSOR) for _ in range(layers)))
    plan: dict[str, ParallelStyle] = dict.fromkeys(
        ("query", "key", "value", "up"), ColwiseParallel()
    )
    plan |= dict.fromkeys(("out", "down"), RowwiseParallel())
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model:
        parallelize_module(block, mesh["tensor"], plan)
        fully_shard(block, mesh=mesh["data"], mp_policy=precision)
    fully_shard(model, mesh=mesh["data"], mp_policy=precision)
    return model


def main() -> None:
    """Trains two steps and prints how the second one's time splits."""
    parser = argparse.ArgumentParser(description="A step on many devices, split by what it does.")
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--fabric", choices=fabric.names(), default="dgx-h100")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--sequence", type=int, default=512)
    parser.add_argument("--batch", type=int, default=2, help="sequences on each rank")
    asked = parser.parse_args()
    if asked.ranks % TENSOR or asked.heads % TENSOR:
        parser.error(f"--ranks and --heads must be multiples of {TENSOR}")
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("uniform", store=store, rank=0, world_size=asked.ranks)
    npusim.set_device(0)
    fabric.use(asked.fabric)
    mesh = init_device_mesh(
        "npusim", (asked.ranks // TENSOR, TENSOR), mesh_dim_names=("data", "tensor")
    )
    model = build(mesh, asked.layers, asked.hidden, asked.heads)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    x = torch.randn(asked.batch, asked.sequence, asked.hidden, device="npusim")

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        npusim.synchronize()

    step()
    with timeline.record() as recorded:
        step()
    shares = recorded.shares()
    parts = {
        "computation": shares.computation_ns,
        "  with communication hidden behind it": shares.hidden_ns,
        "exposed communication": shares.exposed_ns,
        "idle": shares.idle_ns,
    }
    total = shares.computation_ns + shares.exposed_ns + shares.idle_ns
    print(f"{asked.ranks} ranks on {asked.fabric}: {asked.ranks // TENSOR} x {TENSOR}")
    print(f"{'a step':40}{total / 1e3:10.1f} us")
    for name, ns in parts.items():
        print(f"{name:40}{ns / 1e3:10.1f} us {ns / total:7.1%}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
