# SPDX-License-Identifier: BSD-3-Clause
"""Small networks whose dry runs tests compare with whole ones."""

import contextlib

import torch
from torch import nn
from torch.nn import functional as F

from torch_npusim.sim import timeline


class Bottleneck(nn.Module):
    """Version 1.5: the stride is in the 3 x 3 convolution."""

    def __init__(self, inputs, width, stride):
        super().__init__()
        out = 4 * width
        self.convolutions = nn.ModuleList(
            [
                nn.Conv2d(inputs, width, 1, bias=False),
                nn.Conv2d(width, width, 3, stride, 1, bias=False),
                nn.Conv2d(width, out, 1, bias=False),
            ]
        )
        self.norms = nn.ModuleList([nn.BatchNorm2d(width), nn.BatchNorm2d(width)])
        self.last = nn.BatchNorm2d(out)
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x):
        y = x
        for convolution, norm in zip(self.convolutions, self.norms, strict=False):
            y = F.relu(norm(convolution(y)), inplace=True)
        y = self.last(self.convolutions[2](y))
        return F.relu(y.add_(self.shortcut(x)), inplace=True)


class Attention(nn.Module):
    """As nanoGPT had it in December 2022: two products, a mask and a softmax."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.dropout = nn.Dropout(0.0)

    def forward(self, x, mask):
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        scores = (q @ k.transpose(-2, -1)) * (q.size(-1) ** -0.5)
        weights = F.softmax(scores.masked_fill(mask, float("-inf")), dim=-1)
        y = (weights @ v).transpose(1, 2).contiguous().view(batch, length, width)
        return self.out(y)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attention = Attention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, mask):
        x = x + self.attention(self.norms[0](x), mask)
        return x + self.down(new_gelu(self.up(self.norms[1](x))))


def new_gelu(x):
    """The tanh form, written out as nanoGPT had it."""
    inner = 0.7978845608028654 * (x + 0.044715 * torch.pow(x, 3.0))
    return 0.5 * x * (1.0 + torch.tanh(inner))


class Gpt(nn.Module):
    def __init__(self, layers=12, width=768, heads=12, vocabulary=50304, length=1024):
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens):
        length = tokens.size(1)
        x = self.words(tokens) + self.places(torch.arange(length, device=tokens.device))
        ones = torch.ones(length, length, device=tokens.device, dtype=torch.bool)
        mask = ones.triu(1)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


@contextlib.contextmanager
def recorded():
    """A timeline that begins with idle devices."""
    torch.npusim.synchronize()
    with timeline.record() as made:
        yield made


def training(make, inputs, targets, optimizer, autocast=None):
    """Returns the timeline of one step of training; another one came before it."""
    with torch.device("npusim"):
        model = make()
    chosen = optimizer(model.parameters())

    def step():
        chosen.zero_grad(set_to_none=True)
        with autocast or contextlib.nullcontext():
            out = model(inputs)
            loss = F.cross_entropy(out.flatten(0, -2), targets.flatten())
        loss.backward()
        chosen.step()

    step()
    with recorded() as made:
        step()
    return made
