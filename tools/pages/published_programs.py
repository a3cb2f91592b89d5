# SPDX-License-Identifier: BSD-3-Clause
"""The programs behind the published figures of docs/reference/validation.md, for dry runs."""

import contextlib

import torch
from torch import nn
from torch.nn import functional as F

from torch_npusim.sim import dry_run, timeline

# More than any of them needs: the figures are times.
ROOM = "256GiB"


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


def resnet50():
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    layers.append(nn.MaxPool2d(3, 2, 1))
    inputs = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            layers.append(Bottleneck(inputs, width, stride if block == 0 else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


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


def resnet_training(batch, *, amp=False, tf32=False):
    """One step with SGD, as NVIDIA's DeepLearningExamples: AMP goes with channels_last."""
    with dry_run(memory=ROOM), precision(tf32):
        images = torch.empty(batch, 3, 224, 224, device="npusim")
        labels = torch.empty(batch, dtype=torch.int64, device="npusim")
        layout = torch.channels_last if amp else torch.contiguous_format
        return training(
            lambda: resnet50().to(memory_format=layout),
            images.to(memory_format=layout),
            labels,
            lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.875, foreach=False),
            torch.autocast("npusim", torch.float16, enabled=amp),
        )


def resnet_inference(batch, *, amp=False):
    """One batch of an evaluation, with its upload."""
    with dry_run(memory=ROOM), precision(False), torch.no_grad():
        layout = torch.channels_last if amp else torch.contiguous_format
        with torch.device("npusim"):
            model = resnet50().to(memory_format=layout).eval()
        images = torch.empty(batch, 3, 224, 224).to(memory_format=layout).pin_memory()
        with recorded() as made, torch.autocast("npusim", torch.float16, enabled=amp):
            model(images.to("npusim", non_blocking=True))
        return made


def gpt_training():
    """A step of nanoGPT's GPT-2 124M, eager: 12 sequences of 1,024 tokens, bfloat16."""
    with dry_run(memory=ROOM), precision(True):
        tokens = torch.empty(12, 1024, dtype=torch.int64, device="npusim")
        return training(
            Gpt,
            tokens,
            tokens,
            lambda parameters: torch.optim.AdamW(parameters, 6e-4, betas=(0.9, 0.95)),
            torch.autocast("npusim", torch.bfloat16),
        )


def product(rows, inner, columns):
    with dry_run(memory=ROOM), torch.device("npusim"):
        a = torch.empty(rows, inner, dtype=torch.bfloat16)
        b = torch.empty(inner, columns, dtype=torch.bfloat16)
        with recorded() as made:
            a @ b
        return made


def upload(size):
    with dry_run(memory=ROOM):
        data = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        with recorded() as made:
            data.to("npusim", non_blocking=True)
        return made


@contextlib.contextmanager
def precision(tf32):
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
