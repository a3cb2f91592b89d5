# SPDX-License-Identifier: BSD-3-Clause
"""The programs behind the published peaks of docs/reference/published_peaks.md.

Each is a plain writing of the model that was measured, from its configuration: which tensors are
saved, in which dtype, is that of the program that was measured.
"""

from dataclasses import dataclass
from unittest import mock

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

DEVICE = "npusim"


def tokens(batch: int, length: int, vocabulary: int) -> torch.Tensor:
    return torch.randint(0, vocabulary, (batch, length), device="cpu").to(DEVICE)


@dataclass
class Sizes:
    """A decoder's configuration.

    Attributes:
        norm: "layer" or "rms"; "rms_float" and "rms_float_weight" compute in float32, the
            latter with the weight.
        rotary: The share of a head's width that is rotated.
    """

    width: int
    layers: int
    heads: int
    hidden: int
    vocabulary: int
    key_heads: int = 0
    norm: str = "rms"
    gated: bool = True
    bias: bool = False
    parallel: bool = False
    shared_norm: bool = False
    rotary: float = 1.0


class Norm(nn.Module):
    def __init__(self, width, kind):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.kind = kind

    def forward(self, x):
        y = x if self.kind == "rms" else x.float()
        normed = y * torch.rsqrt(torch.mean(y * y, dim=-1, keepdim=True) + 1e-5)
        if self.kind == "rms_float_weight":
            return (self.weight * normed).type_as(x)
        return self.weight * normed.type_as(x)


def norm_of(sizes):
    return nn.LayerNorm(sizes.width) if sizes.norm == "layer" else Norm(sizes.width, sizes.norm)


class Lora(nn.Module):
    """The projection to queries, keys and values; adapters of rank 8 for queries and values."""

    def __init__(self, width, bias):
        super().__init__()
        self.linear = nn.Linear(width, 3 * width, bias=bias)
        self.down = nn.Parameter(torch.empty(16, width))
        self.up = nn.Parameter(torch.empty(2 * width, 8))
        self.places = torch.cat((torch.arange(width), torch.arange(2 * width, 3 * width)))

    def forward(self, x):
        low = F.linear(F.dropout(x, 0.05), self.down)
        high = F.conv1d(low.transpose(-2, -1), self.up.unsqueeze(-1), groups=2).transpose(-2, -1)
        rows = high.transpose(0, 1)
        result = rows.new_zeros((*rows.shape[:-1], self.linear.out_features))
        result = result.view(-1, self.linear.out_features)
        result = result.index_copy(1, self.places, rows.reshape(-1, rows.size(-1)))
        wide = result.view((*rows.shape[:-1], -1)).transpose(0, 1)
        return self.linear(x) + wide * 2.0


def rotated_halves(x, cos, sin):
    half = x.size(-1) // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return (x * cos + turned * sin).type_as(x)


class LoraBlock(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.sizes = sizes
        self.norm_1 = norm_of(sizes)
        self.norm_2 = None if sizes.shared_norm else norm_of(sizes)
        self.qkv = Lora(sizes.width, sizes.bias)
        self.project = nn.Linear(sizes.width, sizes.width, bias=sizes.bias)
        self.up = nn.Linear(sizes.width, sizes.hidden, bias=sizes.bias)
        self.gate = nn.Linear(sizes.width, sizes.hidden, bias=sizes.bias) if sizes.gated else None
        self.down = nn.Linear(sizes.hidden, sizes.width, bias=sizes.bias)

    def attend(self, x, cos, sin):
        batch, length, width = x.shape
        heads = self.sizes.heads
        qkv = self.qkv(x).view(batch, length, heads, 3, width // heads).permute(0, 2, 3, 1, 4)
        query, key, value = (part.squeeze(2) for part in qkv.split(1, dim=2))
        turned = cos.size(-1)
        query, key = (
            torch.cat((rotated_halves(part[..., :turned], cos, sin), part[..., turned:]), dim=-1)
            for part in (query, key)
        )
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.project(out.transpose(1, 2).reshape(batch, length, width))

    def feed(self, x):
        up = self.up(x)
        inner = F.gelu(up) if self.gate is None else F.silu(up) * self.gate(x)
        return self.down(inner)

    def forward(self, x, cos, sin):
        normed = self.norm_1(x)
        attended = self.attend(normed, cos, sin)
        if self.sizes.parallel:
            again = normed if self.norm_2 is None else self.norm_2(x)
            return self.feed(again) + attended + x
        x = attended + x
        return self.feed(self.norm_2(x)) + x


def litgpt_lora(sizes: Sizes, batch: int, length: int, steps: int = 2) -> None:
    """LitGPT's finetune/lora.py of October 2023, in bf16-true."""
    with torch.device(DEVICE):
        torch.set_default_dtype(torch.bfloat16)
        embedding = nn.Embedding(sizes.vocabulary, sizes.width)
        blocks = nn.ModuleList(LoraBlock(sizes) for _ in range(sizes.layers))
        last = norm_of(sizes)
        head = nn.Linear(sizes.width, sizes.vocabulary, bias=sizes.bias)
        turned = int(sizes.rotary * sizes.width / sizes.heads)
        torch.set_default_dtype(torch.float32)
        cos = torch.empty(length, turned)
        sin = torch.empty(length, turned)
    for module in (embedding, blocks, last, head):
        for name, parameter in module.named_parameters():
            parameter.requires_grad_("qkv.down" in name or "qkv.up" in name)
    trained = [p for p in blocks.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4)
    for _ in range(steps):
        given = tokens(batch, length, sizes.vocabulary)
        x = embedding(given)
        for block in blocks:
            x = block(x, cos, sin)
        x = last(x)
        # Fabric converts the results of a model in bf16-true to the default dtype.
        logits = [head(part).float() for part in x.split(128, dim=1)]
        logits[-1] = logits[-1][..., :-1, :]
        targets = given[..., 1:].split(128, dim=1)
        losses = [
            F.cross_entropy(part.reshape(-1, part.size(-1)), target.reshape(-1), reduction="none")
            for part, target in zip(logits, targets, strict=True)
        ]
        torch.cat(losses).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


class OldSoftmax(torch.autograd.Function):
    """Softmax as torch had it until 1.10: its input is saved beside its result."""

    @staticmethod
    def forward(ctx, x):
        made = torch.softmax(x, -1)
        ctx.save_for_backward(x, made)
        return made

    @staticmethod
    def backward(ctx, grad):
        x, made = ctx.saved_tensors
        return torch.ops.aten._softmax_backward_data(grad, made, -1, x.dtype)


def old_softmax(x, dim=-1, dtype=None):
    del dim, dtype
    return OldSoftmax.apply(x.float() if torch.is_autocast_enabled(DEVICE) else x)


@mock.patch.object(F, "softmax", old_softmax)  # checkpoints recompute in the backward pass
def bert_large(
    batch: int,
    *,
    accumulate: int = 1,
    checkpointing: bool = False,
    half: bool = False,
    adafactor: bool = False,
    train: bool = True,
) -> None:
    """The program of transformers' page on training on one GPU, of early 2022."""
    from transformers import BertConfig, BertForSequenceClassification
    from transformers.optimization import Adafactor

    config = BertConfig(
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
        attn_implementation="eager",
    )
    with torch.device(DEVICE):
        model = BertForSequenceClassification(config).train()
    if not train:
        return
    if checkpointing:
        model.gradient_checkpointing_enable()
    optimizer = (
        Adafactor(model.parameters(), scale_parameter=False, relative_step=False, lr=5e-5)
        if adafactor
        else torch.optim.AdamW(model.parameters(), foreach=False)
    )
    scaler = torch.amp.GradScaler(DEVICE, enabled=half)
    for _ in range(2):
        for _ in range(accumulate):
            with torch.autocast(DEVICE, dtype=torch.float16, enabled=half):
                loss = model(tokens(batch, 512, 30000), labels=tokens(batch, 1, 2)[:, 0]).loss
            scaler.scale(loss / accumulate).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
        scaler.step(optimizer)
        scaler.update()
        model.zero_grad(set_to_none=False)  # as torch did in 2022
        del loss


class TunedBlock(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.sizes = sizes
        width, head = sizes.width, sizes.width // sizes.heads
        self.norm_1, self.norm_2 = norm_of(sizes), norm_of(sizes)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, sizes.key_heads * head, bias=False)
        self.value = nn.Linear(width, sizes.key_heads * head, bias=False)
        self.project = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, sizes.hidden, bias=False)
        self.up = nn.Linear(width, sizes.hidden, bias=False)
        self.down = nn.Linear(sizes.hidden, width, bias=False)

    def turn(self, x, cache):
        pairs = x.float().reshape(*x.shape[:-1], -1, 2)
        cos, sin = cache[..., 0], cache[..., 1]
        out = torch.stack(
            [pairs[..., 0] * cos - pairs[..., 1] * sin, pairs[..., 1] * cos + pairs[..., 0] * sin],
            -1,
        )
        return out.flatten(3).type_as(x)

    def attend(self, x, cache):
        batch, length, width = x.shape
        heads, groups = self.sizes.heads, self.sizes.key_heads
        query = self.turn(self.query(x).view(batch, length, heads, -1), cache).transpose(1, 2)
        key = self.turn(self.key(x).view(batch, length, groups, -1), cache).transpose(1, 2)
        value = self.value(x).view(batch, length, groups, -1).transpose(1, 2)
        shape = (batch, groups, heads // groups, length, width // heads)
        key = key.unsqueeze(2).expand(shape).flatten(1, 2)
        value = value.unsqueeze(2).expand(shape).flatten(1, 2)
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.project(out.transpose(1, 2).contiguous().view(batch, length, -1))

    def forward(self, x, cache):
        x = self.attend(self.norm_1(x), cache) + x
        y = self.norm_2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


LLAMA_3B = Sizes(3072, 28, 24, 8192, 128256, key_heads=8, norm="rms_float")


def torchtune_full(
    sizes: Sizes, batch: int, length: int, *, checkpointing: bool = False, chunked: bool = False
) -> None:
    """torchtune's full_finetune_single_device in bf16, with a tied output."""
    with torch.device(DEVICE):
        torch.set_default_dtype(torch.bfloat16)
        embedding = nn.Embedding(sizes.vocabulary, sizes.width)
        blocks = nn.ModuleList(TunedBlock(sizes) for _ in range(sizes.layers))
        last = norm_of(sizes)
        torch.set_default_dtype(torch.float32)
        cache = torch.empty(1, length, 1, sizes.width // sizes.heads // 2, 2)
    parameters = [p for module in (embedding, blocks, last) for p in module.parameters()]
    optimizer = torch.optim.AdamW(parameters, fused=True)
    for _ in range(2):
        given = tokens(batch, length, sizes.vocabulary)
        labels = given.reshape(-1)
        x = embedding(given)
        for block in blocks:
            x = (
                checkpoint(block, x, cache, use_reentrant=False)
                if checkpointing
                else block(x, cache)
            )
        x = last(x)
        if chunked:
            parts = [F.linear(part, embedding.weight) for part in x.chunk(8, dim=1)]
            losses = [
                F.cross_entropy(part.float().reshape(-1, part.size(-1)), label, reduction="sum")
                for part, label in zip(parts, labels.chunk(8), strict=True)
            ]
            loss = torch.stack(losses).sum() / labels.numel()
            del parts, losses
        else:
            logits = F.linear(x, embedding.weight).float()
            loss = F.cross_entropy(logits.reshape(-1, logits.size(-1)), labels)
            del logits
        del x
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        del loss
