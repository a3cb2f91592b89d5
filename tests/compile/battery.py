# SPDX-License-Identifier: BSD-3-Clause
"""Programs that are compiled and compared with eager npusim; test_battery.py runs a part of them.

    python tests/compile/battery.py                  # all of them, one after the other
    python tests/compile/battery.py views softmax    # some

A case is a function that returns (function, arguments, options): options may have `tolerance`, the
arguments of torch.compile(), `config` for Inductor's, and `mutated` where arguments change.
"""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

CASES = {}


def case(make):
    CASES[make.__name__] = make
    return make


@case
def pointwise():
    def function(x, y):
        return (x * 2 + y.exp()).relu() / (1 + y.abs())

    return function, (torch.randn(33, 65), torch.randn(33, 65)), {}


@case
def layer_norm_and_product():
    def function(x, weight):
        return F.softmax(F.layer_norm(x, x.shape[-1:]) @ weight, -1).sum(0)

    return function, (torch.randn(16, 32), torch.randn(32, 24)), {"tolerance": 1e-5}


@case
def softmax():
    return lambda x: F.softmax(x, -1), (torch.randn(9, 130),), {}


@case
def reductions():
    def function(x):
        return x.sum(0), x.mean(1), x.amax(), x.argmin(1), x.var(0), x.norm(), x.prod(0)

    return function, (torch.randn(17, 23),), {"tolerance": 1e-5}


@case
def positions():
    """In the order of the tensor's elements, whatever that of memory."""

    def function(x, y):
        return x.argmax(), x.t().argmin(), y.argmax(), y.argmin(1), y.flatten(1).argmax(1)

    y = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    return function, (torch.randn(6, 5).t(), y), {}


@case
def quotients():
    """By a constant: the CPU divides, a GPU would multiply with the reciprocal."""
    return lambda x: (x / 3.0, x / 7, x.mean(0) / 10), (torch.randn(64, 33),), {}


@case
def boolean_reductions():
    return lambda x: ((x > 0).any(1), (x > -9).all(), (x > 0).sum()), (torch.randn(9, 40),), {}


@case
def scans_and_sort():
    def function(x):
        values, order = x.sort(stable=True, dim=-1)
        return x.cumsum(1), x.cumprod(0), values, order, x.topk(3, -1).values

    return function, (torch.randn(6, 30),), {"tolerance": 1e-5}


@case
def indexing():
    def function(x, i):
        return x[i], x[:, i], x.gather(1, i.expand(8, -1)), x[1:, ::2] * 2, x.index_select(0, i)

    return function, (torch.randn(8, 8), torch.tensor([3, 1, 7])), {}


@case
def scatter():
    def function(x, i, y):
        z = x.clone()
        z[i] = y
        return z, x.scatter_add(0, i[:, None].expand(-1, 8), y), x.index_put((i,), y, True)

    args = torch.randn(8, 8), torch.tensor([3, 1, 3]), torch.ones(3, 8)
    return function, args, {}


@case
def views():
    def function(x):
        y = x.transpose(0, 1)
        return (
            y.reshape(-1) + 1,
            y * 2,
            x[1:].unfold(1, 2, 1) - 1,  # 2.15 makes a view of `+ 0`, on the CPU too
            x.flip(0),
            x.expand(2, 6, 10) * 3,
        )

    return function, (torch.randn(6, 10),), {}


@case
def cat_pad_stack():
    def function(x, y):
        return torch.cat([x, y * 2], 1), F.pad(x, (1, 2), value=3.0), torch.stack([x, x + 1])

    return function, (torch.randn(5, 6), torch.randn(5, 3)), {}


@case
def in_place():
    def function(x, y):
        x.add_(y).mul_(2)
        y[:, 0].zero_()
        return x.sum(1)

    return function, (torch.randn(5, 6), torch.randn(5, 6)), {"mutated": True, "tolerance": 1e-5}


@case
def bfloat16():
    args = torch.randn(9, 16).bfloat16(), torch.randn(16, 9).bfloat16()
    return lambda x, y: (x @ y).relu() + x.sum(), args, {"tolerance": 2e-1}


@case
def integers():
    def function(x, y):
        return x // y, x % y, x << 1, x & y, (x > y).long(), x.float() / y

    return function, (torch.arange(1, 60), torch.arange(3, 62)), {}


@case
def float64():
    return lambda x: (x.sin() * x.exp()).sum(1), (torch.randn(9, 9, dtype=torch.float64),), {}


@case
def complex_numbers():
    return lambda x: (x * x.conj()).real + 1, (torch.randn(4, 4, dtype=torch.complex64),), {}


@case
def convolution():
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()).eval()
    return model, (torch.randn(2, 3, 9, 9),), {"tolerance": 1e-5}


@case
def channels_last_convolution():
    weight = torch.randn(4, 3, 3, 3).to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    return lambda x, w: (F.conv2d(x, w) + 1).relu(), (x, weight), {"tolerance": 1e-5}


@case
def attention():
    def function(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True) + 1

    return function, tuple(torch.randn(2, 2, 8, 16) for _ in range(3)), {"tolerance": 1e-5}


@case
def embedding_bag_of_operators():
    def function(i, w):
        return F.embedding(i, w).sum(1), F.one_hot(i, 9).float(), torch.where(i > 3, i, 0)

    return function, (torch.tensor([[1, 5], [3, 8]]), torch.randn(9, 7)), {"tolerance": 1e-5}


@case
def constants():
    table = torch.arange(6.0)
    return lambda x: x + table.to(x.device), (torch.randn(6),), {}


@case
def nothing_to_compute():
    return lambda x: (x, x.view(-1), x.t()), (torch.randn(3, 4),), {}


@case
def empty_tensors():
    return lambda x: (x + 1, x.sum(), x.sum(1)), (torch.randn(0, 4),), {}


@case
def freezing():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval()

    return (
        model,
        (torch.randn(3, 8),),
        {"config": {"freezing": True}, "no_grad": True, "tolerance": 1e-5},
    )


@case
def max_autotune():
    options = {"mode": "max-autotune-no-cudagraphs", "tolerance": 1e-5}
    return lambda x, y: (x @ y).relu(), (torch.randn(8, 16), torch.randn(16, 8)), options


@case
def reduce_overhead():
    return lambda x: x.sin() + 1, (torch.randn(8),), {"mode": "reduce-overhead"}


@case
def scalars_of_the_host():
    """Whichever operand comes first, the device's decides where a kernel runs."""

    def function(x, scalar):
        return torch.fmax(x + 1, scalar), scalar * x, torch.where(x > 0, scalar, x), scalar + 1

    return function, (torch.randn(5, 3), torch.tensor(0.5)), {"host": (1,)}


@case
def rounded_sizes():
    """A kernel's account needs a size that its loops do not have."""

    def function(x, i):
        return x[: round(i / 2 + 1)] + round(i / 2)

    return function, (torch.zeros(5, dtype=torch.int32), 3), {"dynamic": True}


@case
def dynamic():
    return lambda x: x.softmax(-1) * x.shape[0], (torch.randn(5, 7),), {"dynamic": True}


@case
def conditional():
    def function(x):
        return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x * 2, (x,))

    return function, (torch.ones(5),), {}


@case
def vmap_and_grad():
    def function(x):
        return torch.func.vmap(torch.func.grad(lambda v: (v.sin() ** 2).sum()))(x)

    return function, (torch.randn(4, 5),), {"tolerance": 1e-5}


@case
def autocast():
    model = nn.Linear(8, 8)

    def function(model, x):
        with torch.autocast("npusim", dtype=torch.bfloat16):
            return model(x).relu()

    return function, (model, torch.randn(4, 8)), {"tolerance": 5e-2}


@case
def foreach():
    def function(xs, ys):
        return torch._foreach_add(torch._foreach_mul(xs, ys), 1.0)

    return function, ([torch.randn(5), torch.randn(7)], [torch.randn(5), torch.randn(7)]), {}


@case
def random_as_eager():
    def function(x):
        return F.dropout(x, 0.5) + torch.rand_like(x)

    return function, (torch.ones(64),), {"config": {"fallback_random": True}, "seed": 3}


@case
def upsample_and_pool():
    def function(x):
        return F.interpolate(x, scale_factor=2.0), F.max_pool2d(x, 2), F.avg_pool2d(x, 2)

    return function, (torch.randn(1, 2, 8, 8),), {"tolerance": 1e-5}


@case
def flex_attention():
    from torch.nn.attention.flex_attention import flex_attention

    def function(q, k, v):
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + (i - j))

    return function, tuple(torch.randn(1, 2, 16, 16) for _ in range(3)), {"tolerance": 1e-5}


def moved(value, device, host=()):
    """The same tensors, modules and containers of them on `device`, sharing nothing."""
    import copy

    if isinstance(value, torch.Tensor):
        made = value.detach().clone(memory_format=torch.preserve_format).to(device)
        return made.requires_grad_(value.requires_grad)
    if isinstance(value, nn.Module):
        return copy.deepcopy(value).to(device)
    if isinstance(value, (tuple, list)):
        return type(value)(one if i in host else moved(one, device) for i, one in enumerate(value))
    return value


def compare(found, expected, tolerance):
    """Raises unless both are alike: devices, strides, values."""
    found, expected = (torch.utils._pytree.tree_leaves(x) for x in (found, expected))
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        if not isinstance(theirs, torch.Tensor):
            assert ours == theirs or isinstance(theirs, nn.Module)
            continue
        assert ours.device == theirs.device
        if theirs.numel():
            assert ours.stride() == theirs.stride(), (ours.stride(), theirs.stride())
        limits = {} if tolerance is None else {"rtol": tolerance, "atol": tolerance}
        torch.testing.assert_close(ours.cpu(), theirs.cpu(), **limits)


def check(function, args, options, device="npusim"):
    """Compiles and runs a case twice; raises where it differs from eager."""
    from torch._inductor import config

    options = dict(options)
    tolerance, mutated = options.pop("tolerance", None), options.pop("mutated", False)
    host, seed = options.pop("host", ()), options.pop("seed", 0)
    if isinstance(function, nn.Module):
        function = moved(function, device)
    guard = torch.no_grad() if options.pop("no_grad", False) else torch.enable_grad()
    torch._dynamo.reset()
    with config.patch(options.pop("config", {})), guard:
        compiled = torch.compile(function, **{"fullgraph": True, **options})
        for _ in range(2):
            ours, eagers = moved(args, device, host), moved(args, device, host)
            torch.manual_seed(seed)
            found = compiled(*ours)
            torch.manual_seed(seed)
            compare(found, function(*eagers), tolerance)
            if mutated:
                compare(ours, eagers, tolerance)


def main(names):
    failed = []
    for name in names or CASES:
        begun = time.time()
        try:
            check(*CASES[name]())
            print(f"ok    {time.time() - begun:5.1f} s  {name}", flush=True)
        except Exception as problem:
            failed.append(name)
            text = f"{type(problem).__name__}: {problem}"
            print(f"FAIL  {time.time() - begun:5.1f} s  {name}: {text[-700:]}", flush=True)
    return bool(failed)


if __name__ == "__main__":
    import torch_npusim  # noqa: F401

    torch.manual_seed(0)
    sys.exit(main(sys.argv[1:]))
