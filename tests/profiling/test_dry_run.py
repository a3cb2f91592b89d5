# SPDX-License-Identifier: BSD-3-Clause
"""Dry runs launch what the same program launches on tensors with memory: name by name, ns by ns."""

import contextlib

import pytest
import torch
from profiling import published_programs as programs
from torch import nn
from torch.nn import functional as F

from torch_npusim.profiling import dry_run
from torch_npusim.sim import clock, timeline

DEVICE = torch.device("npusim")


def rows(made):
    """Names and times.

    What a copy is called depends on whether bytes are converted, and autograd adds gradients up in
    place if they are no fake tensors; times are the same.
    """
    return [
        (
            row.name.replace("add_.", "add.") if row.kind == "kernel" else row.kind,
            row.end_ns - row.start_ns,
        )
        for row in made.commands()
    ]


def trained(make, shape, optimizer, autocast=None):
    with DEVICE:
        model = make()
    chosen = optimizer(model.parameters())
    x = torch.ones(shape, device=DEVICE)

    def step():
        chosen.zero_grad()
        with autocast or contextlib.nullcontext():
            loss = model(x).float().square().mean()
        loss.backward()
        chosen.step()

    step()
    with timeline.record() as made:
        step()
    return made


class Attention(nn.Module):
    """Fused attention with dropout around it."""

    def __init__(self):
        super().__init__()
        self.qkv, self.norm = nn.Linear(64, 192), nn.LayerNorm(64)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (4, 16)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return F.dropout(F.gelu(self.norm(x + y)), 0.1)


def small_net():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
        nn.Conv2d(8, 8, 3, groups=2), nn.MaxPool2d(3, 2, 1), nn.ConvTranspose2d(8, 4, 2, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10), nn.LogSoftmax(-1),
    )  # fmt: skip


PROGRAMS = {
    "attention, AdamW": lambda: trained(Attention, (2, 9, 64), torch.optim.AdamW),
    "attention, bfloat16": lambda: trained(
        Attention, (2, 9, 64), torch.optim.AdamW, torch.autocast("npusim", torch.bfloat16)
    ),
    "convolutions, SGD": lambda: trained(
        small_net, (2, 3, 17, 17), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, foreach=False)
    ),
    "convolutions, float16": lambda: trained(
        lambda: small_net().to(memory_format=torch.channels_last),
        (2, 3, 17, 17),
        # Lists of tensors in different orders go one by one on the device, and as one dry.
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, foreach=False),
        torch.autocast("npusim", torch.float16),
    ),
    "a bottleneck": lambda: trained(
        lambda: programs.Bottleneck(8, 4, 2), (2, 8, 9, 9), torch.optim.Adam
    ),
    "nanoGPT": lambda: gpt(),
    "strides and indices": lambda: recorded(strides_and_indices),
}  # fmt: skip


def gpt():
    tokens = torch.ones(2, 16, dtype=torch.int64, device=DEVICE)
    return programs.training(
        lambda: programs.Gpt(2, 32, 4, 64, 16),
        tokens,
        tokens,
        lambda p: torch.optim.AdamW(p, 1e-3),
        torch.autocast("npusim", torch.bfloat16),
    )


def recorded(program):
    with timeline.record() as made, DEVICE:
        program()
    return made


def strides_and_indices():
    x = torch.zeros(64, 128)
    y = x.t().contiguous() + x.t()
    x[:, ::4] += 1
    y.clone().half().sum(0, dtype=torch.float32)
    torch.cat([x, x]).softmax(-1).amax(1)
    torch.stack([x, x]).cumsum(0)
    x.index_select(0, torch.arange(8)).sort()
    x.gather(1, torch.zeros(64, 3, dtype=torch.int64)).scatter_add_(
        1, torch.zeros(64, 2, dtype=torch.int64), torch.ones(64, 2)
    )
    torch.full((3, 3), 2.0).tril().var(0)
    x.masked_fill_(x > 0, 1.0).topk(3)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_dry_run_launches_what_the_program_does(program):
    real = PROGRAMS[program]()
    with dry_run():
        dry = PROGRAMS[program]()
    assert rows(dry) == rows(real)
    assert len(rows(real)) > 5


def test_nothing_takes_memory_and_nothing_runs():
    before = torch.npusim.memory_allocated()
    with dry_run():
        x = torch.empty(1 << 40, dtype=torch.uint8, device=DEVICE)
        start = clock.stream_time_ns()
        y = x + 1
        took = clock.stream_time_ns() - start
    assert torch.npusim.memory_allocated() == before
    assert y.shape == x.shape
    # Two TiB moved at 1,000 bytes per ns, as npusim-one does.
    assert took > 2 << 30


def test_values_are_refused_by_name():
    with dry_run(), pytest.raises(RuntimeError, match="dry run"):
        torch.ones(3, device=DEVICE).sum().item()


def test_uploads_wait_unless_they_need_not():
    with dry_run(), timeline.record() as made:
        data = torch.ones(1000)
        data.to(DEVICE)
        data.to(DEVICE, non_blocking=True)
    kinds = [row.kind for row in made.rows]
    assert kinds.count("copy_h2d") == 2
    assert kinds.count("stream_wait") == 1
