# SPDX-License-Identifier: BSD-3-Clause
"""Programs with a planted cause of lost time, each beside itself mended, and programs without one.

They run dry (torch_npusim.sim.dry_run) with the times of one A100 and of eager Python, so tensors
have the sizes of real work and a program takes a fraction of a second. A bad program is a function
of whether it is mended.
"""

import contextlib
import io
from unittest import mock

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from torch.utils.data import DataLoader, Dataset, TensorDataset

from torch_npusim.profiling import diagnose, record
from torch_npusim.sim import dry_run, specs

DEVICE, SPEC = "npusim", "a100-80-sxm"
BF16 = torch.bfloat16


# --- Parts ----------------------------------------------------------------------------------------


class Block(nn.Module):
    """Half of a layer of a transformer, without attention."""

    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(F.relu(self.up(x)))


def blocks(count, width, dtype=torch.float32):
    """Made on the device, which takes a dry run no time."""
    with torch.device(DEVICE):
        return nn.Sequential(*(Block(width) for _ in range(count))).to(dtype)


class Decoder(nn.Module):
    """Attends without a mask: what it says of padding would be wrong, its time is not."""

    def __init__(self, words=8192, width=1024, layers=4, heads=16):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.heads = heads
        self.attentions = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(layers))
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, words)

    def forward(self, tokens):
        x = self.words(tokens)
        for attention, block in zip(self.attentions, self.blocks, strict=True):
            q, k, v, gate = (
                part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                for part in attention(x).chunk(4, -1)
            )
            y = F.scaled_dot_product_attention(q, k, v) * gate
            x = block(x + y.transpose(1, 2).flatten(2))
        return self.head(x)


class Images(nn.Module):
    def __init__(self, channels=256, layers=6):
        super().__init__()
        self.first = nn.Conv2d(64, channels, 3, padding=1)
        self.rest = nn.Sequential(
            *(
                nn.Sequential(
                    nn.Conv2d(channels, channels, 3, padding=1),
                    nn.BatchNorm2d(channels),
                    nn.ReLU(inplace=True),
                )
                for _ in range(layers)
            )
        )

    def forward(self, x):
        return self.rest(self.first(x)).mean((2, 3))


def training(model, batches, *, steps=3, optimizer=None, loss_of=lambda y: y.float().mean()):
    """Yields the loss of each step."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(steps):
        for batch in batches:
            loss = loss_of(model(batch))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            yield loss


def run(steps):
    for _ in steps:
        pass


def autocast(**how):
    return torch.autocast(DEVICE, dtype=BF16, **how)


# --- Bad programs, and mended ---------------------------------------------------------------------


class Wall:
    """The wall clock of recordings here: only samples take time, whatever else the machine does."""

    ns = 0

    @classmethod
    def perf_counter_ns(cls):
        return cls.ns


class Slow(Dataset):
    def __init__(self, slow):
        self.slow = slow

    def __len__(self):
        return 8

    def __getitem__(self, index):
        Wall.ns += 6_000_000 * self.slow
        return index


def loader(mended):
    """A loader that makes its samples slowly."""
    x = torch.ones(1 << 28, device=DEVICE)
    for _batch in DataLoader(Slow(not mended), batch_size=2):
        for _ in range(6):
            x.mul_(1.01)


def items(mended):
    """`loss.item()` in each step."""
    x = torch.ones(2048, 2048, device=DEVICE, dtype=BF16)
    losses = []
    for _ in range(30):
        loss = (x @ x).sum()
        losses.append(loss if mended else loss.item())
    if mended:
        torch.stack(losses).tolist()


def prints(mended):
    """`print(loss)` in each step."""
    model = blocks(2, 1024, dtype=BF16)
    x = torch.ones(2048, 1024, device=DEVICE, dtype=BF16)
    losses = []
    for loss in training(model, [x], steps=6):
        if mended:
            losses.append(loss.detach())
        else:
            print(loss)
    if mended:
        print(torch.stack(losses))


def copies(mended):
    """Pageable uploads that the host waits for."""
    model = blocks(6, 1024, dtype=BF16).requires_grad_(False)
    batch = torch.ones(8192, 1024, dtype=BF16)
    if not mended:
        for _ in range(6):
            model(batch.to(DEVICE))
        return
    batch = batch.pin_memory()
    main, side = torch.npusim.current_stream(), torch.npusim.Stream()

    def send():
        with torch.npusim.stream(side):
            sent = batch.to(DEVICE, non_blocking=True)
        return sent, side.record_event()

    ahead = send()
    for _ in range(6):
        x, ready = ahead
        main.wait_event(ready)
        x.record_stream(main)
        ahead = send()
        model(x)


def link(mended):
    """float32 images over a busy link, for a model of bfloat16."""
    model = nn.Linear(1024, 10).to(DEVICE, BF16).requires_grad_(False)
    images = torch.ones(1 << 14, 1024, dtype=BF16 if mended else torch.float32).pin_memory()
    for _ in range(8):
        model(images.to(DEVICE, non_blocking=True).to(BF16))


def tiny(mended):
    """Steps of forty operators on small tensors."""
    x = torch.ones(256, 256, device=DEVICE)

    def step():
        y = x
        for _ in range(40):
            y = y * 1.01
        return y

    if mended:
        graph = torch.npusim.NPUSIMGraph()
        with torch.npusim.graph(graph):
            step()
        step = graph.replay
    for _ in range(20):
        step()


def precision(mended):
    """Training in float32 without TF32."""
    torch.set_float32_matmul_precision("high" if mended else "highest")
    run(training(blocks(4, 2048), [torch.ones(4096, 2048, device=DEVICE)]))


def half(mended):
    """Training in TF32 on a device with bfloat16.

    bfloat16 is twice as fast and moves half of the bytes.
    """
    torch.set_float32_matmul_precision("high")
    model = blocks(4, 2048)
    x = torch.ones(16384, 2048, device=DEVICE)
    with autocast(enabled=mended):
        run(training(model, [x]))


def strided(mended):
    """A transposed table that is read again and again."""
    table = torch.ones(8192, 8192, device=DEVICE).t()
    out = torch.zeros(8192, 8192, device=DEVICE)
    if mended:
        table = table.contiguous()
    for _ in range(60):
        out.add_(table)


def recomputation(mended):
    """Every block checkpointed, in a memory with room."""
    model = blocks(8, 2048, dtype=BF16)

    def forward(x):
        for block in model:
            x = block(x) if mended else checkpoint(block, x, use_reentrant=False)
        return x

    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    x = torch.ones(8192, 2048, device=DEVICE, dtype=BF16, requires_grad=True)
    run(training(forward, [x], optimizer=optimizer))


def optimizer(mended):
    """AdamW with `foreach=False`."""
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(40))).to(DEVICE, BF16)
    how = torch.optim.AdamW(
        model.parameters(), **({"fused": True} if mended else {"foreach": False})
    )
    run(training(model, [torch.ones(8192, 512, device=DEVICE, dtype=BF16)], optimizer=how))


def layout(mended):
    """Convolutions of NCHW in bfloat16."""
    order = torch.channels_last if mended else torch.contiguous_format
    model = Images(channels=64).to(DEVICE, BF16, memory_format=order)
    x = torch.ones(64, 64, 112, 112, device=DEVICE, dtype=BF16).to(memory_format=order)
    run(training(model, [x]))


def casts(mended):
    """Inference under autocast: weights are converted in each call.

    Autocast keeps a converted weight until its block ends.
    """
    model = blocks(8, 2048).requires_grad_(False)
    x = torch.ones(512, 2048, device=DEVICE)
    if mended:
        model, x = model.to(BF16), x.to(BF16)
    for _ in range(6):
        with autocast(enabled=not mended):
            model(x)


class Sentences(Dataset):
    """Token 0 fills each up to the longest; lengths are spread evenly."""

    def __init__(self, longest=512, count=96):
        spread = torch.randperm(count, generator=torch.Generator().manual_seed(0))
        self.lengths = (16 + spread * (longest - 16) // (count - 1)).tolist()
        self.longest = longest

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        tokens = torch.randint(1, 8192, (self.lengths[index],))
        return F.pad(tokens, (0, self.longest - len(tokens)))


def padding(mended):
    """Sentences of 16 to 512 tokens, all filled up to 512."""
    data, how = Sentences(), {}
    if mended:
        ranked = sorted(range(len(data)), key=lambda i: data.lengths[i])
        alike = [ranked[begin : begin + 16] for begin in range(0, len(data), 16)]
        how["sampler"] = [index for i in (2, 0, 5, 3, 1, 4) for index in alike[i]]

    def collate(sentences):
        batch = torch.stack(sentences)
        return batch[:, : int((batch != 0).sum(1).max())] if mended else batch

    model = Decoder().to(DEVICE, BF16)
    batches = DataLoader(data, batch_size=16, collate_fn=collate, **how)
    batches = (batch.to(DEVICE) for batch in batches)
    run(training(model, batches, steps=1))


def alignment(mended):
    """A vocabulary of 16,001 words for a small model of bfloat16."""
    words = 16_008 if mended else 16_001
    table, last = (nn.Embedding(words, 256), nn.Linear(256, words, bias=False))
    model = nn.Sequential(table, last).to(DEVICE, BF16)
    tokens = (torch.randint(0, 16_000, (8192,), device=DEVICE) for _ in range(3))
    run(training(model, tokens, steps=1))


# Cause that must be named first, and the program.
BAD = {
    loader: "loader", items: "host_waits", copies: "copies", tiny: "launches",
    precision: "precision", strided: "strided",
    link: "link", prints: "host_waits", recomputation: "recomputation", optimizer: "optimizer",
    layout: "layout", half: "precision", casts: "casts", padding: "padding",
    alignment: "alignment",
}  # fmt: skip


# --- Good programs --------------------------------------------------------------------------------


def a_graph():
    """small operators in a graph."""
    tiny(mended=True)


def a_quick_loader():
    """a loader that is ready."""
    x = torch.ones(1 << 28, device=DEVICE)
    for _batch in DataLoader(TensorDataset(torch.ones(8, 16)), batch_size=2):
        for _ in range(40):
            x.mul_(1.01)


def a_prefetch():
    """uploads one batch ahead."""
    copies(mended=True)


def products():
    """large products of bfloat16."""
    a = torch.ones(4096, 4096, device=DEVICE, dtype=BF16)
    for _ in range(8):
        a = a @ a


def streaming():
    """large pointwise operators."""
    x = torch.ones(1 << 27, device=DEVICE)
    for _ in range(8):
        x.mul_(1.01)


def mixed_precision():
    """training with autocast."""
    model = blocks(4, 2048)
    with autocast():
        run(training(model, [torch.ones(16384, 2048, device=DEVICE)]))


def images_in_channels_last():
    """convolutions in channels_last with autocast."""
    model = Images().to(DEVICE, memory_format=torch.channels_last)
    x = torch.ones(64, 64, 56, 56, device=DEVICE).to(memory_format=torch.channels_last)
    with autocast():
        run(training(model, [x]))


def inference():
    """a model of 1.6 GB copied once, and called."""
    with torch.device("meta"):
        model = nn.Sequential(*(Block(4096) for _ in range(6))).to(BF16).requires_grad_(False)
    model = model.to_empty(device="cpu").to(DEVICE)
    x = torch.ones(4096, 4096, device=DEVICE, dtype=BF16)
    for _ in range(4):
        model(x)


def checkpoints_that_memory_needs():
    """checkpoints without which memory would be full.

    The activations of 48 layers need 100 GB.
    """
    model = blocks(48, 2048, dtype=BF16)
    forward = lambda x: checkpoint_sequential(model, 48, x, use_reentrant=False)  # noqa: E731
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    x = torch.ones(1 << 17, 2048, device=DEVICE, dtype=BF16, requires_grad=True)
    run(training(forward, [x], optimizer=optimizer))


def sentences_of_a_length():
    """sentences of like lengths."""
    data = Sentences()
    data.lengths = [480 + i % 32 for i in range(len(data))]
    model = Decoder().to(DEVICE, BF16)
    batches = DataLoader(data, batch_size=16)
    run(training(model, (batch.to(DEVICE) for batch in batches), steps=1))


def a_loss_now_and_then():
    """a loss shown in each fourth step."""
    model = blocks(4, 2048, dtype=BF16)
    x = torch.ones(8192, 2048, device=DEVICE, dtype=BF16)
    for step, loss in enumerate(training(model, [x], steps=8)):
        if step % 4 == 3:
            print(loss.item())


def micro_batches():
    """four micro-batches a step, each under autocast."""
    model = blocks(4, 2048)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    x = torch.ones(8192, 2048, device=DEVICE)
    for _ in range(2):
        for _ in range(4):
            with autocast():
                loss = model(x).float().mean()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def dropout_in_attention():
    """an encoder of bfloat16 whose attention has dropout."""
    layer = nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).to(DEVICE, BF16)
    x = torch.ones(32, 512, 1024, device=DEVICE, dtype=BF16)
    run(training(model, [x]))


GOOD = [
    a_graph, a_quick_loader, a_prefetch, products, streaming, mixed_precision,
    images_in_channels_last, inference, checkpoints_that_memory_needs, sentences_of_a_length,
    a_loss_now_and_then, micro_batches, dropout_in_attention,
]  # fmt: skip


def diagnosed(program, *words):
    """The diagnosis of a program on one A100 and the host of the published figures."""
    host = specs.load_host("eager")
    before = torch.get_float32_matmul_precision()
    try:
        with (
            contextlib.redirect_stdout(io.StringIO()),
            mock.patch("torch_npusim.profiling._recording.time", Wall),
            dry_run(spec=SPEC, dispatch_us=host.dispatch_us),
            record(program.__name__, module_us=host.module_us) as recording,
        ):
            program(*words)
    finally:
        torch.set_float32_matmul_precision(before)
    return diagnose(recording, spec=SPEC)
