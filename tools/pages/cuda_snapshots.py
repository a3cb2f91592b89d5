# SPDX-License-Identifier: BSD-3-Clause
"""The list of allocations of a real GPU beside that of a dry run of the same model.

    python tools/pages/cuda_snapshots.py SNAPSHOT [--length 128] [--mixed] [--forward] [--cold]

The snapshot is one of torch.cuda.memory of a training step of a known program: a decoder of the
course CS336, 2.7 billion parameters, 4 sequences, on an H100. The program below is written anew
from the shapes and the order of operators that the snapshot's stacks show.
"""

import argparse
import difflib
import math
import os
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

WIDTH, LAYERS, HEADS, HIDDEN, VOCABULARY, BATCH = 2560, 32, 32, 10240, 10000, 4


class Plain(pickle.Unpickler):
    """Reads containers and numbers, and no classes."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"a snapshot has no {module}.{name}")


def sizes(trace: list[Any]) -> list[tuple[str, int]]:
    """Returns the allocations and frees of tensors in their order, empty ones and segments out."""
    kinds = {"alloc": "+", "free_requested": "-"}
    return [(kinds[e["action"]], e["size"]) for e in trace if e["action"] in kinds and e["size"]]


def program(length: int, mixed: bool, forward_only: bool, cold: bool) -> list[Any]:
    """Returns the trace of a dry run."""
    import torch
    from torch import nn

    import torch_npusim
    from torch_npusim.sim import dry_run

    memory = torch_npusim.npusim.memory
    device = "npusim"

    class Linear(nn.Module):
        def __init__(self, out, width):
            super().__init__()
            self.weight = nn.Parameter(torch.empty(out, width))

        def forward(self, x):
            # torch.einsum of the snapshot's version: the weight is the left factor, and the first
            # that autocast converts.
            weight = self.weight
            if mixed:
                weight, x = weight.to(torch.bfloat16), x.to(torch.bfloat16)
            rows = x.reshape(1, -1, x.size(-1)).transpose(1, 2)
            out = torch.bmm(weight.unsqueeze(0), rows)
            return out.view(-1, *x.shape[:-1]).permute(1, 2, 0)

    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(WIDTH))

        def forward(self, x):
            norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
            scale = torch.sqrt(norm**2 / WIDTH + 1e-5)
            scaled = x / scale
            out = torch.einsum("d,...d->...d", self.weight, scaled)
            return out.to(x.dtype)

    class Rope(nn.Module):
        def __init__(self):
            super().__init__()
            half = WIDTH // HEADS // 2
            self.register_buffer("cos", torch.empty(length, half))
            self.register_buffer("sin", torch.empty(length, half))

        def forward(self, x, positions):
            cos, sin = self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1)
            out = torch.zeros_like(x)
            even, odd = x[..., ::2], x[..., 1::2]
            out[..., ::2] = even * cos - odd * sin
            out[..., 1::2] = even * sin + odd * cos
            return out

    def softmax(x):
        top = torch.max(x, dim=-1, keepdim=True)[0]
        raised = torch.exp(x - top)
        return raised / torch.sum(raised, dim=-1, keepdim=True)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm_1, self.norm_2 = Norm(), Norm()
            self.query, self.key = Linear(WIDTH, WIDTH), Linear(WIDTH, WIDTH)
            self.value, self.project = Linear(WIDTH, WIDTH), Linear(WIDTH, WIDTH)
            self.rope = Rope()
            self.gate, self.down = Linear(HIDDEN, WIDTH), Linear(WIDTH, HIDDEN)
            self.up = Linear(HIDDEN, WIDTH)

        def attend(self, x):
            def heads(y):
                return y.view(BATCH, length, HEADS, -1).transpose(1, 2)

            wide_query, wide_key, wide_value = self.query(x), self.key(x), self.value(x)
            query, key, value = heads(wide_query), heads(wide_key), heads(wide_value)
            positions = torch.arange(length, device=x.device).unsqueeze(0).expand(BATCH, -1)
            query = self.rope(query, positions)
            key = self.rope(key, positions)
            mask = torch.triu(torch.ones(length, length, device=x.device), diagonal=1).to(
                torch.bool
            )
            mask = ~mask
            mask = mask.unsqueeze(0).unsqueeze(0).expand(BATCH, HEADS, -1, -1)
            out = attention(query, key, value, mask)
            out = out.transpose(1, 2).reshape(BATCH, length, WIDTH)
            return self.project(out)

        def forward(self, x):
            h = self.norm_1(x)
            h = self.attend(h)
            x = x + h
            h = self.norm_2(x)
            gate, up = self.gate(h), self.up(h)
            gate = gate * torch.sigmoid(gate)
            h = self.down(gate * up)
            return x + h

    def attention(query, key, value, mask):
        scores = torch.einsum("...qd,...kd->...qk", query, key)
        scores = scores / math.sqrt(WIDTH // HEADS)
        scores = scores.masked_fill(mask == False, -1e9)  # noqa: E712
        weights = softmax(scores)
        return torch.einsum("...qk,...kd->...qd", weights, value)

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Parameter(torch.empty(VOCABULARY, WIDTH))
            self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
            self.norm, self.head = Norm(), Linear(VOCABULARY, WIDTH)

        def forward(self, x):
            x = self.embedding[x]
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    def loss_of(logits, targets):
        top = torch.max(logits, dim=-1, keepdim=True)[0]
        logits = logits - top
        total = torch.sum(torch.exp(logits), dim=-1, keepdim=True)
        chosen = torch.gather(logits, -1, targets.unsqueeze(-1))
        return (torch.log(total) - chosen).squeeze(-1).mean()

    with dry_run(spec="h100-sxm", temporaries="cuda"):
        with torch.device(device):
            model = Decoder()
        batch = torch.randint(0, VOCABULARY, (BATCH, length)).to(device)
        if not cold:
            torch.mm(*torch.empty(2, 8, 8, device=device))  # makes the workspace of cuBLAS
        memory._record_memory_history(max_entries=1 << 20, stacks="python")
        with torch.autocast(device, dtype=torch.bfloat16, enabled=mixed):
            logits = model(batch)
            if not forward_only:
                loss_of(logits, batch).backward()
        return memory._snapshot()["device_traces"][0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("snapshot", type=Path)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--mixed", action="store_true")
    parser.add_argument("--forward", action="store_true")
    parser.add_argument("--cold", action="store_true", help="the first product is in the list")
    parser.add_argument("--show", type=int, default=20, help="differences")
    given = parser.parse_args()
    os.environ["NPUSIM_ALLOCATOR"] = "cuda-2.13"
    with given.snapshot.open("rb") as file:
        theirs = Plain(file).load()["device_traces"][0]
    real, dry = sizes(theirs), sizes(program(given.length, given.mixed, given.forward, given.cold))
    if not given.forward:  # without their optimizer, which is a class of their own
        real = real[: len(dry)]
    print(f"{len(real)} events of the GPU, {len(dry)} of the dry run")
    matcher = difflib.SequenceMatcher(None, real, dry, autojunk=False)
    same = sum(block.size for block in matcher.get_matching_blocks())
    print(f"{same} in the same order: {same / len(real):.1%} of the GPU's")
    found: Counter[Any] = Counter()
    for kind, a, b, c, d in matcher.get_opcodes():
        if kind != "equal":
            found[f"GPU {real[a:b][:6]}   dry {dry[c:d][:6]}"] += 1
    for difference, count in found.most_common(given.show):
        print(f"{count:5} x {difference}")


if __name__ == "__main__":
    main()
