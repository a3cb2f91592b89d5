# SPDX-License-Identifier: BSD-3-Clause
"""Views, in-place writes, hooks, checkpoints, own functions, streams and derivatives of any order.

Oracle: the same program on the CPU: values, gradients, versions, what is a view or a leaf, names of
`grad_fn`, what hooks saw, and the class of each exception.
"""

from engine import Program, parts

START = """
import torch
from torch.utils.checkpoint import checkpoint
npu = torch.npusim

class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x ** 3

    @staticmethod
    def backward(ctx, gradient):
        return 3 * ctx.saved_tensors[0] ** 2 * gradient

class Side:
    def __init__(self, device):
        self.device = device
        self.t, self.seen, self.made = {}, [], {}
        for name, shape in (("a", (2, 4)), ("b", (2, 4)), ("c", (4, 2)), ("d", (8,))):
            x = torch.linspace(0.5, 1.5, 8).view(shape).clone()
            self.t[name] = x.to(device).requires_grad_(name != "d")

    def hook(self, name, factor):
        def called(gradient):
            self.seen.append((name, gradient.clone()))
            return gradient * factor if factor else None
        return called

    def aside(self, f, x):
        if self.device == "cpu":
            return f(x)
        stream = npu.Stream()
        stream.wait_stream(npu.current_stream())
        with npu.stream(stream):
            y = f(x)
        npu.current_stream().wait_stream(stream)
        y.record_stream(npu.current_stream())
        return y

    def run(self, line):
        try:
            exec(line, globals() | self.t | {"t": self.t, "s": self})  # lambdas see them
        except Exception as error:
            self.seen.append((type(error).__name__, torch.zeros(0)))

def told(x, before=0):
    try:
        leaf = x.is_leaf, x.requires_grad, x.grad_fn and x.grad_fn.name(), x.output_nr
    except RuntimeError as error:  # a view that nobody may use any more
        leaf = str(error)[:40]
    return leaf, version(x) - before, x.is_inference(), x._is_view(), x.stride()

def version(x):
    return 0 if x.is_inference() else x._version

cpu, device = Side("cpu"), Side("npusim")
known = 0

def do(line):
    for side in (cpu, device):
        side.run(line)

def equal(a, b, what):
    a, b = a.detach(), b.detach().cpu()
    assert a.shape == b.shape and a.dtype == b.dtype, what
    assert torch.allclose(a, b, 1e-5, 1e-6, equal_nan=True), (what, a, b)

def check():
    global known
    assert len(cpu.seen) == len(device.seen), (cpu.seen[known:], device.seen[known:])
    for (one, a), (other, b) in zip(cpu.seen[known:], device.seen[known:]):
        assert one == other, (one, other)
        equal(a, b, f"hook of {one}")
    known = len(cpu.seen)
    for name, a in cpu.t.items():
        b = device.t[name]
        # What is made of an inference tensor begins with the writes of its kernel.
        one, two = (told(s.t[name], s.made.setdefault(name, version(s.t[name])))
                    for s in (cpu, device))
        assert one == two, (name, one, two)
        equal(a, b, f"value of {name}")
        if isinstance(told(a)[0], str):
            continue
        grads = [x.grad if x.is_leaf or x.retains_grad else None for x in (a, b)]
        assert (grads[0] is None) == (grads[1] is None), f"{name}: a gradient is missing"
        if grads[0] is not None:
            assert told(grads[0]) == told(grads[1]), (name, told(grads[0]), told(grads[1]))
            equal(*grads, f"gradient of {name}")
"""
# Statements between semicolons; {x} and {y} are names of tensors.
MADE = """
{x} * {y}; {x} + {y} * 2; {x}.sin(); {x} ** 2; {x} @ {y}.reshape(4, 2); {x}.sum(0); {x}.t();
{x}.view(-1); {x}.view(2, 4); {x}[0]; {x}[..., ::2]; {x}.expand(3, *{x}.shape)[0];
{x}.chunk(2, -1)[1]; {x}.unbind(0)[1]; {x}.split(2)[0]; {x}.detach(); {x}.clone();
{x}.contiguous(); {x}.flatten(); {x}.as_strided((2, 2), (1, 2)); {x}.diagonal();
{x}.unfold(-1, 2, 2); {x}.view_as({y}); {x}.squeeze(); {x}[{x} > 1];
torch.where({x} > 1, {x}, {y}); torch.cat([{x}, {y}]); Cube.apply({x});
checkpoint(lambda x: x.sin() * {y}, {x}, use_reentrant=True);
checkpoint(lambda x: x.cos() * {y}, {x}, use_reentrant=False);
checkpoint(Cube.apply, {x}, use_reentrant=False);
s.aside(lambda x: x * 3, {x}); s.aside(Cube.apply, {x});
torch.autograd.grad({x}.sum(), {y}, create_graph=True)[0];
torch.autograd.grad(({x} ** 3).sum(), {x}, create_graph=True)[0];
torch.autograd.grad({x}.sum(), {y}, allow_unused=True, retain_graph=True)[0] + 0;
torch.func.grad(lambda x: (x ** 3 * {y}).sum())({x}.detach());
torch.func.vjp(torch.sin, {x}.detach())[1]({x}.detach())[0];
torch.func.jvp(torch.exp, ({x}.detach(),), ({x}.detach(),))[1];
torch.func.vmap(lambda x: x.sum() * x)({x});
torch.autograd.functional.hessian(lambda x: (x ** 3).sum(), {x}[0].detach());
torch.nn.functional.dropout({x}, 0.0)
"""
DONE = """
{x}.mul_(2); {x}.add_({y}); {x}[0] = 1.0; {x}[..., 0].mul_(3); {x}.view(-1)[1:3].zero_();
{x}.copy_({y}); {x}.t_(); {x}.detach_(); {x}.detach().add_(1); {x}.data.mul_(2); {x}.relu_();
{x}.requires_grad_(); {x}.requires_grad_(False); {x}.retain_grad(); {x}.grad = None;
{x}.grad.zero_(); {x}.register_hook(s.hook('{x}', 0)); {x}.register_hook(s.hook('{x}', 2));
{x}.register_post_accumulate_grad_hook(lambda p: s.seen.append(('after', p.grad.clone())));
{x}.grad_fn.register_hook(lambda made, given: s.seen.append(('node', given[0].clone())));
{x}.grad_fn.register_prehook(lambda given: s.seen.append(('before', given[0].clone())));
{x}.sum().backward(); {x}.sum().backward(retain_graph=True);
{x}.sum().backward(create_graph=True); {x}.sum().backward(inputs=[{y}]);
({x} * {y}).sum().backward(); {x}.backward({y});
s.aside(lambda x: (x * {y}).sum(), {x}).backward(); s.t.pop('{x}')
"""
AROUND = """
torch.no_grad(); torch.inference_mode(); torch.enable_grad();
torch.autograd.detect_anomaly(check_nan=False); torch.autograd.graph.save_on_cpu();
torch.autograd.graph.saved_tensors_hooks(lambda x: x * 1, lambda x: x);
torch.autograd.graph.allow_mutation_on_saved_tensors();
torch.autograd.set_multithreading_enabled(False); torch.autograd.forward_ad.dual_level()
"""


def program(random) -> Program:
    """Eight to twenty statements, a quarter within a mode of autograd."""
    names, lines = ["a", "b", "c", "d"], []
    for number in range(random.randint(8, 20)):
        x, y = random.choice(names), random.choice(names)
        new = random.random() < 0.6
        text = random.choice(parts(MADE if new else DONE)).format(x=x, y=y)
        if new:
            names.append(f"t{number}")
            text = f"t['t{number}'] = {text}"
        if random.random() < 0.25:
            text = f"with {random.choice(parts(AROUND))}: {text}"
        lines.append(f"do({text!r})")
    return Program(tuple(lines), START, "check()")
