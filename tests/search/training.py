# SPDX-License-Identifier: BSD-3-Clause
"""Trainings of one to six layers on inputs of any layout.

Oracle: the CPU, bit for bit, for losses, gradients, parameters and buffers (with autocast: both
runs of the device alone); every allocation and free of a dry run is that of the real one, in order
(rule M13); under the alias no rule is broken and nothing races; what a compiler's graph computes is
the same but for rounding, also replayed, and so is what the replays of a captured step do.
"""

import re

from engine import DEVICES, Program, parts

START = """
import functools, gc, itertools
import torch
from torch import nn
from torch.nn import functional as F
from torch._dynamo.backends.common import aot_autograd
from torch.utils.checkpoint import checkpoint
from torch_npusim.inductor.replay import replayed
from torch_npusim.sim import dry_run, races
from torch_npusim.sim.dry import active
D, npu = DEVICE
gc.disable()  # tensors in cycles would go at another moment
makers, shape, layout = [], (2, 3, 4), "plain"

class Call(nn.Module):
    def __init__(self, f, *inner):
        super().__init__()
        self.f, self.inner = f, nn.ModuleList(inner)

    def forward(self, x):
        return self.f(x, *self.inner)

def given(device):
    x = torch.linspace(-2, 2, torch.Size(shape).numel()).view(shape).sin()
    if layout == "expanded":
        return x[:1].to(device).expand(shape)
    if layout == "channels last" and len(shape) == 4:
        return x.to(device).to(memory_format=torch.channels_last)
    if layout == "transposed":
        return x.transpose(0, -1).contiguous().to(device).transpose(0, -1)
    if layout == "every second":
        return x.repeat_interleave(2, -1).to(device)[..., ::2]
    return x.to(device)

def net():
    torch.manual_seed(0)
    made = nn.Sequential()
    for maker in makers:
        made.append(maker(made(given("cpu")).shape))
    return made

def replays(graph, inputs, backward):
    given, copy = graph.graph.find_nodes(op="placeholder"), torch.ops.aten.copy_.default
    written = [u.args[0] for x in given for u in x.users if u.target is copy]
    changed = [i for i, x in enumerate(given) if x in written]
    run = replayed(lambda given: graph(*given), tuple(changed), backward, False, 0)
    run._boxed_call = True
    return run
of_passes = [functools.partial(replays, backward=backward) for backward in (False, True)]
aot_replayed = aot_autograd(fw_compiler=of_passes[0], bw_compiler=of_passes[1])

def train(device, optimizer, steps, amp=False, backend="", graphed=False):
    model, x = net().to(device), given(device).requires_grad_()
    chosen = optimizer([*model.parameters(), torch.ones(1, device=device, requires_grad=True)])
    called = torch.compile(model, backend=backend) if backend else model
    scaler = torch.amp.GradScaler(D, enabled=amp and len([*model.parameters()]) > 0)

    def step():
        chosen.zero_grad()
        if backend and x.grad is not None:  # a replay's gradient ends with its step
            x.grad = x.grad.clone()
        with torch.autocast(D, torch.bfloat16, enabled=amp):
            y = called(x).float()
        loss = loss_of(y, x)
        scaler.scale(loss).backward()
        scaler.step(chosen)
        scaler.update()
        return loss

    side = npu.Stream() if graphed else None
    with npu.stream(side):  # as torch asks for before a capture
        loss = step()
    if graphed:
        graph = npu.CUDAGraph() if D == "cuda" else npu.NPUSIMGraph()
        with npu.graph(graph, stream=side):
            loss = step()
    for _ in range(steps):
        loss = graph.replay() or loss if graphed else step()
    gradients = [x.grad, *[p.grad for p in model.parameters()]]
    with torch.no_grad():
        return [loss, *gradients, *model.state_dict().values(), model(x)]

def traced(optimizer, steps, amp, dry):
    gc.collect()
    if D == "cuda":
        torch._C._cuda_clearCublasWorkspaces()
    npu.empty_cache()
    with dry_run() if dry else races.record() as run:
        npu.memory._record_memory_history(context=None)
        results = train(D, optimizer, steps, amp)
        (trace, *_) = npu.memory._snapshot()["device_traces"]
        npu.memory._record_memory_history(enabled=None)
        results = [] if dry else [x.detach().cpu() for x in results]
    assert dry or not run.races, run.races[0]
    events = [(e["action"], e["addr"], e["size"]) for e in trace]
    events = [e for e in events if e[0] in ("alloc", "free_requested")]
    # Autocast's cache frees its casts in the order of a hash of addresses of the host.
    runs = itertools.groupby(events, lambda event: event[0])
    return results, [e for _, run in runs for e in (sorted(run) if amp else run)]

def same(got, expected, what, error=0.0):
    for number, (a, b) in enumerate(zip(got, expected, strict=True)):
        a, b = a.detach().cpu(), b.detach().cpu()
        assert torch.allclose(a, b, error, error, equal_nan=True), f"{what}: {number} differs"

def ask(optimizer, steps, amp=False, compiled=False, graphed=False, apart=False):
    train(D, optimizer, steps, amp)  # what a first call imports may hold a tensor longer
    results, wet = traced(optimizer, steps, amp, False)
    _, dry = traced(optimizer, steps, amp, True)
    for number, (a, b) in enumerate(itertools.zip_longest(wet, dry)):
        assert a == b, f"dry is not wet: event {number} is {b}, where {a} is right"
    if not amp and not apart:
        same(results, train("cpu", optimizer, steps), "CPU")
    if compiled:
        # A compiler lays gradients out otherwise, and they are rounded as they lie.
        for backend in ("aot_eager", aot_replayed):
            torch.compiler.reset()
            same(train(D, optimizer, steps, amp, backend), results, "compiled", 1e-4)
    if graphed:
        same(train(D, optimizer, steps, graphed=True), results, "replayed")
"""
# Not compared with the CPU (`apart`): what is drawn, and turned gradients of RMSNorm. They lie in
# rows as CUDA's do, and the layer before adds them up in that order; a compiler composes them.
SHAPES = ("(2, 3, 4)", "(4, 4, 4)", "(3, 8)", "(2, 4, 6, 6)", "(1, 2, 5, 4)", "(8, 1, 4)")
LAYOUTS = ("plain", "transposed", "expanded", "channels last", "every second")
# Group norms of channels_last are left out: torch's derivative asks the CPU alone for
# channels_last gradients, so those of a device lie in rows, as on CUDA, and round otherwise.
LAYERS = """
nn.Linear(s[-1], {n}); nn.Linear(s[-1], {n}, bias=False);
(nn.BatchNorm1d if len(s) < 4 else nn.BatchNorm2d)(s[1]) if s.numel() > s[1] else nn.Tanh();
nn.LayerNorm(s[-1]); nn.LayerNorm(s[1:]); nn.RMSNorm(s[-1]);
nn.GroupNorm(1, s[1]) if layout != "channels last" else nn.Tanh();
(nn.Conv1d if len(s) < 4 else nn.Conv2d)(s[1], {n}, 3, padding=1) if len(s) > 2 else nn.Tanh();
(nn.AvgPool1d if len(s) < 4 else nn.AvgPool2d)(3, 1, 1);
(nn.MaxPool1d if len(s) < 4 else nn.MaxPool2d)(3, 1, 1); nn.ReLU(); nn.GELU(); nn.SiLU();
nn.PReLU(); nn.Softmax(-1); nn.LogSoftmax(1); nn.Dropout(0.5);
Call(lambda x, m: m(x)[0], nn.LSTM(s[-1], {n}, batch_first=True)) if len(s) == 3 else nn.Tanh();
Call(lambda x, m: m(x)[0], nn.GRU(s[-1], {n}, batch_first=True)) if len(s) == 3 else nn.Tanh();
Call(lambda x, m: x + m((x[..., 0] > 0).long()), nn.Embedding(2, s[-1]));
nn.ConvTranspose2d(s[1], {n}, 2, 2) if len(s) == 4 else nn.Tanh();
Call(lambda x: x.sort(-1).values); Call(lambda x: x.topk(1, -1).values);
Call(lambda x: x[:, torch.zeros(2, dtype=torch.long, device=x.device)]);
Call(lambda x: x.transpose(1, -1)); Call(lambda x: x.transpose(0, -1)); Call(lambda x: x.flip(1));
Call(lambda x: x.cumsum(-1)); Call(lambda x: x + x.mean(1, keepdim=True));
Call(lambda x: torch.cat([x, x], 1)); Call(lambda x: x[:, ::2]); Call(lambda x: x.contiguous());
Call(lambda x: F.scaled_dot_product_attention(x, x, x)) if s[-1] > 1 else nn.Tanh();
Call(lambda x: F.normalize(x, dim=-1)); Call(lambda x: (x * 1).relu_());
Call(lambda x: checkpoint(torch.tanh, x, use_reentrant=False, preserve_rng_state=False))
"""
LOSSES = """
y.square().mean(); F.l1_loss(y, torch.ones_like(y) / 3);
F.cross_entropy(y.flatten(1), torch.zeros(len(y), dtype=torch.long, device=y.device));
torch.autograd.grad(y.square().mean(), x, create_graph=True)[0].square().sum() + y.sum()
"""
# Attention is wider than 1, for the CPU's batch norm before it (docs/reference/torch_faults.md).
# Layers without a second derivative, or with one composed otherwise than the CPU's (RMSNorm).
ONCE = "attention|LSTM|GRU|RMSNorm"
OPTIMIZERS = """
SGD(p, 0.1, momentum=0.9, foreach={f}); AdamW(p, foreach={f}); Adam(p, fused={f});
RMSprop(p, foreach={f}); Adagrad(p, foreach={f}); NAdam(p, foreach={f});
Adadelta(p, foreach={f}); ASGD(p, foreach={f}); Rprop(p, foreach={f}); RAdam(p, foreach={f});
Adamax(p, foreach={f}); Adafactor(p)
"""


def program(random) -> Program:
    """One training; some are compiled or captured too."""
    lines = [f"shape = {random.choice(SHAPES)}", f"layout = {random.choice(LAYOUTS)!r}"]
    for _ in range(random.randint(1, 6)):
        layer = random.choice(parts(LAYERS)).format(n=random.choice((1, 4, 5)))
        lines.append(f"makers.append(lambda s: {layer})")
    loss = random.choice(parts(LOSSES))
    text = str(lines)
    turned = "RMSNorm" in text and re.search("transpose|channels", text) is not None
    kind = random.choices(("", "amp", "compiled", "graphed"), (6, 3, 1, 2))[0]
    chosen = parts(OPTIMIZERS)[: 1 if kind == "compiled" else None]  # others step far for noise
    optimizer = random.choice(chosen).format(f=random.choice((True, False)))
    if "create_graph" in loss and (kind == "compiled" or re.search(ONCE, text)):
        loss = parts(LOSSES)[0]
    if (kind == "compiled" and turned) or (kind == "graphed" and re.match("Ada[gf]", optimizer)):
        kind = ""
    if kind == "graphed" and not optimizer.startswith("SGD"):
        optimizer = f"{optimizer[:-1]}, capturable=True)"
    words = f", {kind}=True" if kind else ""
    if turned or "Dropout" in text or "capturable" in optimizer:
        words += ", apart=True"
    lines.append(f"loss_of = lambda y, x: {loss}")
    steps = 6 if kind == "compiled" else random.randint(1, 2)  # a replay begins at the fifth
    lines.append(f"ask(lambda p: torch.optim.{optimizer}, {steps}{words})")
    return Program(tuple(lines), START.replace("DEVICE", random.choice(DEVICES)))
