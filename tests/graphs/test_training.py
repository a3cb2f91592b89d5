# SPDX-License-Identifier: BSD-3-Clause
"""Threads and operands of captured training steps.

Whole captured trainings beside eager ones are tests/search/training.py.
"""

import threading

import pytest
import torch
from torch import nn

DEVICE = "npusim"


def trained(graphed):
    """Losses of five steps of a convolution, whose gradients are sums over threads."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(288, 1))
    optimizer = torch.optim.SGD(model.to(DEVICE).parameters(), 0.05, momentum=0.9)
    x, graph = torch.rand(4, 3, 8, 8, device=DEVICE), torch.npusim.NPUSIMGraph()

    def step():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    step()
    losses = []
    if graphed:
        with torch.npusim.graph(graph):
            loss = step()
    for _ in range(5):
        loss = graph.replay() or loss if graphed else step()
        losses.append(loss.item())
    return losses


def test_a_captured_step_is_the_eager_one_whatever_other_threads_set():
    """A DataLoader's thread for pinned memory sets one thread, also for threads that start later.

    The autograd engine's threads took that over, and a replay runs in the thread of its caller.
    """
    trained(graphed=False)
    torch.set_num_threads(2)
    other = threading.Thread(target=torch.set_num_threads, args=(1,))
    other.start()
    other.join()
    assert trained(graphed=True) == trained(graphed=False)


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
