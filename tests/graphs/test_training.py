# SPDX-License-Identifier: BSD-3-Clause
"""A captured training step is the eager one, bit for bit, over twenty steps."""

import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F

DEVICE = "npusim"
STEPS = 20


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, 2, width // 2).transpose(1, 2)
            for part in self.qkv(self.norms[0](x)).split(width, 2)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + F.dropout(self.out(attended.transpose(1, 2).reshape(x.shape)), 0.1, self.training)
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(50, 32), nn.Embedding(8, 32)
        self.blocks = nn.Sequential(Block(32), Block(32))
        self.head = nn.Linear(32, 50)

    def forward(self, ids):
        places = torch.arange(ids.shape[1], device=ids.device)
        return self.head(self.blocks(self.tokens(ids) + self.places(places))).flatten(0, 1)


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.body = nn.Sequential(
            nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
            nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8),
        )  # fmt: skip
        self.head = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(8, 10)
        )

    def forward(self, images):
        x = self.stem(images)
        return self.head(F.relu(x + self.body(x)))


def gpt():
    ids = [torch.randint(0, 50, (2, 8)) for _ in range(STEPS)]
    labels = [torch.randint(0, 50, (16,)) for _ in range(STEPS)]
    model = GPT().to(DEVICE)
    return model, torch.optim.AdamW(model.parameters(), 1e-3, capturable=True), ids, labels


def resnet():
    images = [torch.randn(4, 3, 8, 8) for _ in range(STEPS)]
    labels = [torch.randint(0, 10, (4,)) for _ in range(STEPS)]
    model = ResNet().to(DEVICE)
    return model, torch.optim.SGD(model.parameters(), 0.05, momentum=0.9), images, labels


def plain_step(model, optimizer):
    def step(x, y):
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step, lambda: None


def scaled_step(model, optimizer):
    """The forward and backward passes are captured; the scaler's step waits, as on CUDA."""
    scaler = torch.amp.GradScaler(DEVICE, init_scale=1024.0)

    def step(x, y):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE, dtype=torch.float16, cache_enabled=False):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        return loss

    def after():
        scaler.step(optimizer)
        scaler.update()

    return step, after


def train(build, step_of, graphed):
    torch.manual_seed(0)
    model, optimizer, inputs, labels = build()
    step, after = step_of(model, optimizer)
    x, y = inputs[0].to(DEVICE), labels[0].to(DEVICE)
    for _ in range(3):  # state of the optimizer exists from here on
        step(x, y)
        after()
    run = None
    if graphed:
        graph = torch.npusim.NPUSIMGraph()
        with torch.npusim.graph(graph):
            static = step(x, y)

        def run():
            graph.replay()
            return static

    losses = []
    for inp, label in zip(inputs, labels, strict=True):
        x.copy_(inp)
        y.copy_(label)
        losses.append((run() if graphed else step(x, y)).item())
        after()
    return losses, [value.cpu() for value in model.state_dict().values()]


@pytest.mark.parametrize(
    ("build", "step"),
    [(gpt, plain_step), (resnet, plain_step), (gpt, scaled_step), (resnet, scaled_step)],
    ids=["gpt", "resnet", "gpt-amp", "resnet-amp"],
)
def test_a_captured_step_is_the_eager_one(build, step):
    eager, state = train(build, step, graphed=False)
    replayed, state_of_replays = train(build, step, graphed=True)
    assert replayed == eager
    assert all(map(torch.equal, state_of_replays, state))
    assert len(set(eager)) > STEPS // 2  # half precision has few values


def test_a_captured_step_is_the_eager_one_whatever_other_threads_set():
    """A DataLoader's thread for pinned memory sets one thread, also for threads that start later.

    The autograd engine's threads took that over, and a replay runs in the thread of its caller.
    """
    train(resnet, plain_step, graphed=False)
    torch.set_num_threads(2)
    other = threading.Thread(target=torch.set_num_threads, args=(1,))
    other.start()
    other.join()
    eager, _ = train(resnet, plain_step, graphed=False)
    replayed, _ = train(resnet, plain_step, graphed=True)
    assert replayed == eager


def test_gradients_are_made_with_the_arithmetic_of_the_caller():
    """The thread count and the treatment of denormals are those of the thread of backward()."""
    found = []

    class Seen(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            found.append((torch.get_num_threads(), (gradient * 0.5).tolist()))
            return gradient

    smallest = torch.finfo(torch.float32).tiny
    x = torch.ones(1, device=DEVICE, requires_grad=True)
    given = torch.full((1,), smallest, device=DEVICE)
    Seen.apply(x).backward(given)  # the engine's thread exists from here on
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(before + 1)
        flushes = torch.set_flush_denormal(True)
        Seen.apply(x).backward(given)
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(before)
    Seen.apply(x).backward(given)
    expected = [(before, [smallest / 2]), (before + 1, [0.0]), (before, [smallest / 2])]
    assert found == (expected if flushes else [(n, [smallest / 2]) for n, _ in expected])


@pytest.mark.parametrize("inputs", ["one", "two"])
def test_an_operand_given_twice_is_one_operand_in_replays(inputs):
    """The fast path of attention asks whether query, key and value are one tensor."""
    attention = nn.MultiheadAttention(8, 2, batch_first=True, device=DEVICE).eval()
    x = torch.rand(2, 4, 8, device=DEVICE)
    y = x if inputs == "one" else torch.rand(2, 4, 8, device=DEVICE)
    captured = torch.npusim.NPUSIMGraph()
    with torch.no_grad():
        with torch.npusim.graph(captured):
            found = attention(x, y, y)[0]
        for _ in range(2):
            x.copy_(torch.rand(2, 4, 8))
            captured.replay()
            assert torch.equal(found, attention(x, y, y)[0])
