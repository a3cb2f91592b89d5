# SPDX-License-Identifier: BSD-3-Clause
"""Graphs of random operators, their pools and lifetimes: each replay equals the eager call.

Oracle: the same function called eagerly on the replay's input; statistics are the same before and
after a replay; results that were alive when a later graph of their pool was captured, and the
tensors of others, keep their values.
"""

from engine import DEVICES, Program, parts

START = """
import torch
from torch.nn import functional as F
D, npu = DEVICE
Graph = npu.CUDAGraph if D == "cuda" else npu.NPUSIMGraph
m = torch.linspace(-1, 1, 64, device=D).view(8, 8)
i = torch.tensor([3, 1, 0, 2, 7, 6, 5, 4], device=D)
side = npu.Stream()
graphs, pools, live = {}, {}, {}

def aside(f, x):
    side.wait_stream(npu.current_stream())
    with npu.stream(side):
        y = f(x)
    npu.current_stream().wait_stream(side)
    return y

def capture(name, f, pool=None):
    x = torch.ones(8, device=D)
    graph = Graph()
    with npu.graph(graph, pool=pools.get(pool)):
        y = f(x)
    pools[name] = graph.pool()
    graphs[name] = graph, f, x, y, pools.get(pool, pools[name])

def replay(name, seed):
    graph, f, x, y, pool = graphs[name]
    x.copy_(torch.arange(8.) * seed)
    before = npu.memory_allocated()
    torch.manual_seed(seed)
    graph.replay()
    assert npu.memory_allocated() == before, "a replay changes the statistics"
    for other in [*graphs][[*graphs].index(name):]:
        if graphs[other][4] == pool:
            live.pop(other, None)
    live[name] = y, y.cpu()
    torch.manual_seed(seed)
    expected = f((torch.arange(8.) * seed).to(D)).cpu()
    assert torch.equal(live[name][1], expected), (live[name][1], expected)

def keep(name, number):
    live[name] = torch.full((number,), 7.0, device=D), torch.full((number,), 7.0)

def drop(name):
    graphs.pop(name, None)
    live.pop(name, None)

def check():
    for name, (tensor, value) in live.items():
        assert torch.equal(tensor.cpu(), value), f"{name} has changed"
"""

INDICES = """
torch.arange(7, -1, -1, device=D); i; ((torch.arange(8, device=D) + 3) % 8);
torch.argsort({x}.sin()); torch.randperm(8, device=D)
"""
# Each makes eight numbers of eight numbers.
STEPS = """
{x}[{i}]; F.embedding({i}, m) @ {x}; torch.gather({x}, 0, {i}); {x}.index_select(0, {i});
torch.take({x}, {i}); F.nll_loss(F.log_softmax(m * {x}, 1), {i}, reduction='none');
torch.zeros(8, device=D).index_add(0, {i}, {x}); torch.zeros(8, device=D).scatter_(0, {i}, {x});
F.one_hot({i}, 8).float() @ {x}; {x}.index_fill(0, {i}[:3], 2.0);
{x}.clone().index_put_(({i},), {x} * 2); {x} + torch.rand(8, device=D); F.dropout({x}, 0.5);
torch.normal({x}, 1.0); m @ {x}; F.linear({x}, m, {x}); torch.addmm(m, m, m) @ {x};
aside(lambda x: x * 3 + 1, {x}); aside(lambda x: x[{j}], {x}); {x}.clone().mul_(2).add_({x});
{x}.cumsum(0); {x}.sort().values; {x}.topk(8).values; torch.where({x} > 2, {x}, -{x});
torch.cat([{x}[4:], {x}[:4]]); F.softmax({x}, 0); {x}.view(2, 4).t().flatten();
F.layer_norm({x}, (8,)); {x} * torch.tensor(2.0); {x}.to(torch.float64).sin().float()
"""


def function(random) -> str:
    """The text of a function of eight numbers."""
    text = "x"
    for _ in range(random.randint(1, 4)):
        index, other = random.choice(parts(INDICES)), random.choice(parts(INDICES)[:3])
        step = random.choice(parts(STEPS))
        text = step.replace("{i}", index).replace("{j}", other).replace("{x}", f"({text})")
    return f"lambda x: {text}"


def program(random) -> Program:
    """Captures, replays and drops some graphs, among tensors of others."""
    names, made, lines = [], [], []
    for number in range(random.randint(6, 16)):
        choice = random.random()
        if not names or choice < 0.3:
            pool = repr(random.choice(made)) if made and random.random() < 0.5 else None
            lines.append(f'capture("g{number}", {function(random)}, {pool})')
            names, made = [*names, f"g{number}"], [*made, f"g{number}"]
        elif choice < 0.7:
            lines.append(f'replay("{random.choice(names)}", {random.randint(1, 9)})')
        elif choice < 0.85:
            lines.append(f'keep("t{number}", {random.choice((1, 8, 64, 1000))})')
        else:
            lines.append(f'drop("{names.pop(random.randrange(len(names)))}")')
    lines.append(f'replay("{names[-1]}", 5)' if names else "pass")
    return Program(tuple(lines), START.replace("DEVICE", random.choice(DEVICES)), "check()")
