# SPDX-License-Identifier: BSD-3-Clause
"""Small programs that train or use models: a dry run's memory is compared with a real one's.

memory_programs.py FILE    measures them in this process, where nothing else is alive
"""

import gc
import json
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from torch_npusim.sim import dry_run

DEVICE = "npusim"


def ones(*sizes, dtype=torch.float32):
    return torch.ones(sizes, dtype=dtype, device=DEVICE)


def trained(model, x, optimizer=torch.optim.AdamW, loss=None, *, amp=False, scaled=False):
    model = model.to(DEVICE)
    chosen = optimizer(model.parameters())
    scaler = torch.amp.GradScaler(DEVICE, enabled=scaled)
    for _ in range(2):
        chosen.zero_grad()
        with torch.autocast(DEVICE, torch.bfloat16, enabled=amp):
            out = model(*x)
        value = loss(out) if loss else out.float().square().mean()
        scaler.scale(value).backward()
        scaler.step(chosen)
        scaler.update()


def mlp(optimizer=torch.optim.AdamW):
    layers = nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 10)
    )
    trained(layers, [ones(32, 64)], optimizer)


def classifier():
    labels = ones(32, dtype=torch.int64)
    layers = nn.Sequential(
        nn.Linear(64, 128), nn.LayerNorm(128), nn.Dropout(0.1), nn.Tanh(), nn.Linear(128, 10)
    )
    trained(layers, [ones(32, 64)], loss=lambda y: F.cross_entropy(y, labels))


class Block(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x):
        q, k, v = (
            y.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for y in self.qkv(self.first(x)).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Transformer(nn.Module):
    def __init__(self, width=64, layers=2, tokens=128, *, checkpointed=False):
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, tokens, bias=False)
        self.checkpointed = checkpointed

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.head(x)


def transformer(*, checkpointed=False, **more):
    tokens = ones(4, 16, dtype=torch.int64)
    trained(
        Transformer(checkpointed=checkpointed),
        [tokens],
        loss=lambda y: F.cross_entropy(y.flatten(0, 1).float(), tokens.flatten()),
        **more,
    )


def of_transformers(family, head, **sizes):
    import transformers

    config = getattr(transformers, f"{family}Config")(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        vocab_size=128, **sizes,
    )  # fmt: skip
    model = getattr(transformers, f"{family}{head}")(config).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = ones(2, 16, dtype=torch.int64)
    labels = tokens if head == "ForCausalLM" else tokens[:, 0]
    for _ in range(2):
        optimizer.zero_grad()
        model(input_ids=tokens, labels=labels).loss.backward()
        optimizer.step()


def convolutions(layout=torch.contiguous_format):
    layers = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
        nn.Conv2d(8, 16, 3), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(16, 10),
    )  # fmt: skip
    images = ones(4, 3, 32, 32).to(memory_format=layout)
    trained(layers.to(memory_format=layout), [images], torch.optim.SGD)


class LastStep(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.rnn, self.head = kind(16, 32, 2, batch_first=True), nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


def gan():
    maker = nn.Sequential(nn.Linear(8, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.Tanh())
    judge = nn.Sequential(nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
    maker, judge = maker.to(DEVICE), judge.to(DEVICE)
    first, second = (torch.optim.AdamW(m.parameters()) for m in (maker, judge))
    loss = F.binary_cross_entropy_with_logits
    for _ in range(2):
        made = maker(torch.randn(16, 8, device=DEVICE))
        second.zero_grad()
        for seen in (ones(16, 64), made.detach()):
            loss(judge(seen), ones(16, 1)).backward()
        second.step()
        first.zero_grad()
        loss(judge(made), ones(16, 1)).backward()
        first.step()


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.down, self.middle = nn.Conv2d(8, 16, 3, 2, 1), nn.Conv2d(16, 16, 3, padding=1)
        self.up, self.last = nn.ConvTranspose2d(16, 8, 2, 2), nn.Conv2d(16, 3, 3, padding=1)
        self.time = nn.Linear(1, 16)

    def forward(self, x, time):
        first = F.silu(self.norm(self.first(x)))
        down = self.middle(F.silu(self.down(first)) + self.time(time)[:, :, None, None])
        return self.last(torch.cat([first, self.up(down)], 1))


class Experts(nn.Module):
    def __init__(self, width=32, count=4):
        super().__init__()
        self.gate = nn.Linear(width, count)
        self.up = nn.Parameter(torch.zeros(count, width, 2 * width))
        self.down = nn.Parameter(torch.zeros(count, 2 * width, width))

    def forward(self, x):
        scores = self.gate(x)
        best, chosen = scores.softmax(-1).topk(2, -1)
        weight = torch.zeros_like(scores).scatter(-1, chosen, best)
        y = torch.einsum("bw,nwh->nbh", x, self.up).relu()
        return (torch.einsum("nbh,nhw->nbw", y, self.down) * weight.t()[..., None]).sum(0)


class Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(64, 64).requires_grad_(False)
        self.a, self.b = nn.Linear(64, 4, bias=False), nn.Linear(4, 64, bias=False)

    def forward(self, x):
        return self.frozen(x) + self.b(self.a(x)) * 0.5


def buckets():
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)).to(DEVICE)
    parameters = list(model.parameters())
    flat, start = ones(sum(p.numel() for p in parameters)), 0
    for p in parameters:
        p.grad = flat[start : start + p.numel()].view_as(p)
        start += p.numel()
    optimizer = torch.optim.SGD(parameters)
    for _ in range(2):
        model(ones(4, 32)).sum().backward()
        flat /= 2
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


def autoencoder():
    encoder, decoder = nn.Linear(64, 32).to(DEVICE), nn.Linear(16, 64).to(DEVICE)
    optimizer = torch.optim.AdamW([*encoder.parameters(), *decoder.parameters()])
    x = torch.rand(8, 64, device=DEVICE)
    for _ in range(2):
        mean, variance = encoder(x).chunk(2, -1)
        y = decoder(mean + torch.randn_like(mean) * (0.5 * variance).exp()).sigmoid()
        loss = F.mse_loss(y, x) - 0.5 * (1 + variance - mean.pow(2) - variance.exp()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class Convolved(nn.Module):
    """A variational autoencoder of images."""

    def __init__(self):
        super().__init__()
        self.down, self.inner = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 2, 1)
        self.outer, self.up = nn.ConvTranspose2d(4, 8, 4, 2, 1), nn.ConvTranspose2d(8, 3, 4, 2, 1)

    def forward(self, x):
        mean, variance = self.inner(F.relu(self.down(x))).chunk(2, 1)
        made = mean + torch.randn_like(mean) * (0.5 * variance).exp()
        return self.up(F.relu(self.outer(made))).sigmoid()


def gradient_penalty():
    model, x = nn.Linear(16, 1).to(DEVICE), ones(4, 16).requires_grad_()
    (gradient,) = torch.autograd.grad(model(x).tanh().sum(), x, create_graph=True)
    ((gradient.norm(2, 1) - 1) ** 2).mean().backward()


def sorted_and_scanned():
    x = torch.randn(64, 64, device=DEVICE, requires_grad=True)
    for _ in range(3):
        (x.cumsum(0).sort(1).values[:, :8] * x[:8].t().mean()).var().backward()


def accumulated():
    model = nn.Linear(64, 64).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    for i in range(4):
        model(ones(8, 64)).square().mean().backward()
        if i % 2:
            optimizer.step()
            optimizer.zero_grad()


def inference():
    model = Transformer().to(DEVICE).eval()
    with torch.inference_mode():
        model(ones(4, 16, dtype=torch.int64)).argmax(-1)


PROGRAMS = {
    "MLP, AdamW": mlp,
    "MLP, SGD": lambda: mlp(lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
    "MLP, fused": lambda: mlp(lambda p: torch.optim.AdamW(p, fused=True)),
    "MLP, one by one": lambda: mlp(lambda p: torch.optim.Adam(p, foreach=False)),
    "MLP, capturable": lambda: mlp(lambda p: torch.optim.Adam(p, capturable=True)),
    "MLP, RMSprop": lambda: mlp(torch.optim.RMSprop),
    "MLP, Adafactor": lambda: mlp(torch.optim.Adafactor),
    "classifier": classifier,
    "transformer": transformer,
    "transformer, checkpointed": lambda: transformer(checkpointed=True),
    "transformer, bfloat16": lambda: transformer(amp=True),
    "transformer, GradScaler": lambda: transformer(amp=True, scaled=True),
    "Llama": lambda: of_transformers("Llama", "ForCausalLM", num_key_value_heads=2),
    "BERT": lambda: of_transformers("Bert", "ForSequenceClassification"),
    "GRU": lambda: trained(LastStep(nn.GRU), [ones(4, 6, 16)]),
    "GAN": gan,
    "experts": lambda: trained(Experts(), [ones(16, 32)]),
    "LoRA": lambda: trained(Adapted(), [ones(8, 64)]),
    "buckets": buckets,
    "autoencoder": autoencoder,
    "gradient penalty": gradient_penalty,
    "sort and scan": sorted_and_scanned,
    "accumulation": accumulated,
    "inference": inference,
    "convolutions": convolutions,
    "convolutions, channels_last": lambda: convolutions(torch.channels_last),
    "U-Net": lambda: trained(UNet(), [ones(2, 3, 16, 16), ones(2, 1)]),
    "VAE": lambda: trained(Convolved(), [ones(2, 3, 32, 32)]),
    "LSTM": lambda: trained(LastStep(nn.LSTM), [ones(4, 6, 16)]),
    "Muon": lambda: trained(nn.Linear(32, 32, bias=False), [ones(4, 32)], torch.optim.Muon),
}


def release():
    gc.collect()
    torch.npusim.empty_cache()
    assert torch.npusim.memory_reserved() == 0, "tensors of an earlier program are alive"


def measured(program):
    """Peaks, and allocations and frees as [action, address, bytes]."""
    release()
    torch.npusim.reset_peak_memory_stats()
    torch.npusim.memory._record_memory_history(stacks="python", max_entries=1 << 20)
    gc.disable()  # tensors in cycles would go at another moment
    try:
        program()
    finally:
        gc.enable()
    stats = torch.npusim.memory_stats()
    (trace, *_) = torch.npusim.memory._snapshot()["device_traces"]
    torch.npusim.memory._record_memory_history(enabled=None)
    release()
    peaks = [stats[f"{what}_bytes.all.peak"] for what in ("allocated", "reserved")]
    events = [[entry["action"], entry["addr"], entry["size"]] for entry in trace]
    return peaks, [event for event in events if event[0] in ("alloc", "free_requested")]


def main():
    found = {}
    measured(mlp)  # an optimizer's first step imports modules, whose frames keep tensors alive
    for name, program in PROGRAMS.items():
        torch.manual_seed(0)
        real = measured(program)
        with dry_run():
            found[name] = {"real": real, "dry": measured(program)}
    Path(sys.argv[1]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
