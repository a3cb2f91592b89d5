# SPDX-License-Identifier: BSD-3-Clause
"""Random programs, compiled on npusim against eager npusim, forward and gradients.

    python tests/compile/random_programs.py --seeds 0:100

A seed makes a program: tensors of some layouts and dtypes, and scalars of the host, then operators
that mix them. One that differs is tried on the CPU too, where Inductor has the same loops, and is
printed as lines of Python.
"""

import argparse
import random
import sys

import torch

LAYOUTS = ("dense", "transposed", "sliced", "expanded", "rotated")
TOLERANCE = {torch.bfloat16: 4e-2, torch.float32: 2e-4, torch.float64: 1e-8}

# name, arguments besides the first -> source; {t}: a tensor that broadcasts, {s}: a scalar of the
# host, {d}: a dimension, {n}: a small number. Of what has poles, what is inside of them.
POINTWISE = (
    "{x} + {t}",
    "{x} * {t}",
    "{x} - {s}",
    "{s} * {x}",
    "torch.maximum({t}, {x})",
    "torch.fmax({x}, {s})",
    "torch.where({x} > {t}, {x}, {s})",
    "torch.where({t} > 0, {s}, {x})",
    "{x} / ({t}.abs() + 1)",
    "{x} / {n}",
    "{x}.sigmoid()",
    "{x}.tanh()",
    "torch.nn.functional.gelu({x})",
    "torch.nn.functional.silu({x})",
    "({x}.abs() + 1).log()",
    "{x}.clamp(-1, {n})",
    "{x}.masked_fill({x} > 1, {n})",
    "torch.addcmul({x}, {x}, {t})",
    "{x}.lerp({t}, 0.25)",
    "{x}.add_({t})",
    "{x}.mul_({s})",
)
SHAPED = (
    "{x}.softmax({d})",
    "{x}.log_softmax({d})",
    "{x}.cumsum({d})",
    "{x}.flip({d})",
    "{x}.roll(1, {d})",
    "{x}.transpose(0, -1)",
    "{x}.transpose(0, -1).contiguous()",
    "{x}.sum({d}, keepdim=True) + {x}",
    "{x} - {x}.mean({d}, keepdim=True)",
    "{x}.amax({d}, keepdim=True)",
    "{x}.var({d}, keepdim=True)",
    "{x}.norm(dim={d}, keepdim=True)",
    "torch.cat([{x}, {x}], {d})",
    "torch.stack([{x}, {x} + 1], 0).sum(0)",
    "{x}.sort({d})[0]",
    "{x}.argmax({d}, keepdim=True) + {x}",
    "{x}.flatten().argmin() + {x}",
    "{x}.narrow({d}, 0, 1) * {x}",
    "{x}.index_select({d}, torch.tensor([0, 0], device={x}.device))",
    "torch.nn.functional.layer_norm({x}, {x}.shape[-1:])",
    "torch.nn.functional.pad({x}, (1, 0))",
    "{x} @ {x}.transpose(-1, -2)",
    "{x}.gather({d}, ({x}.detach() > 0).long() * 0)",
    "{x}.reshape(-1, 1)",
    "torch.scatter_add({x}, 0, ({x}.detach() > 0).long() * 0, {x})",
    "{x}.unfold({d}, 1, 1).squeeze(-1)",
    "{x}.diff(dim={d}, prepend={x}.narrow({d}, 0, 1))",
    "{x}.double().sum({d}, keepdim=True).to({x}.dtype) + {x}",
)


def program(seed):
    """The source of a function of (x0, x1, s) and how to make its arguments."""
    rng = random.Random(seed)
    shape = [rng.randint(1, 9) for _ in range(rng.randint(1, 4))]
    other = [n if rng.random() < 0.7 else 1 for n in shape][rng.randint(0, len(shape) - 1) :]
    dtype = rng.choice((torch.float32, torch.float32, torch.float64, torch.bfloat16))
    made = [(dtype, shape, rng.choice(LAYOUTS)), (dtype, other, rng.choice(LAYOUTS))]
    lines, names = ["a = x0 * 1"], ["a"]
    for _ in range(rng.randint(2, 7)):
        template = rng.choice(rng.choice((POINTWISE, SHAPED)))
        filled = template.format(
            x=names[-1],
            t=rng.choice((names[-1], "x1")),
            s="s",
            d=rng.choice((0, -1)),
            n=rng.randint(2, 5),
        )
        name = chr(ord("a") + len(names))
        lines.append(f"{name} = {filled}")
        names.append(name)
    kept = sorted({names[-1], rng.choice(names)})
    body = "\n".join(f"    {line}" for line in lines)
    return f"def function(x0, x1, s):\n{body}\n    return {', '.join(kept)},\n", made


def tensor(seed, dtype, shape, layout, device):
    """A tensor of random numbers, made on the host."""
    generator = torch.Generator().manual_seed(seed)

    def numbers(*sizes):
        return torch.randn(*sizes, generator=generator, dtype=torch.float64).to(dtype).to(device)

    if layout == "transposed" and len(shape) > 1:
        return numbers(*reversed(shape)).permute(*reversed(range(len(shape))))
    if layout == "sliced":
        return numbers(*shape[:-1], 2 * shape[-1] + 1)[..., 1::2]
    if layout == "expanded":
        return numbers(1, *shape[1:]).expand(*shape)
    if layout == "rotated" and len(shape) > 1:
        return numbers(shape[-1], *shape[:-1]).movedim(0, -1)
    return numbers(*shape)


def run(function, made, seed, device):
    """Results and gradients on the host."""
    x0, x1 = (tensor(seed + i, *how, device).requires_grad_() for i, how in enumerate(made))
    out = function(x0, x1, torch.tensor(0.5, dtype=made[0][0]))
    loss = sum(x.sum() for x in out if x.is_floating_point())
    gradients = torch.autograd.grad(loss, (x0, x1), allow_unused=True)
    return [None if x is None else x.detach().cpu() for x in (*out, *gradients)]


def difference(source, made, seed, device):
    """The compiled program's error on `device`, or ""; None: it is no program."""
    space = {"torch": torch}
    exec(source, space)
    function = space["function"]
    try:
        expected = run(function, made, seed, device)
    except (RuntimeError, IndexError):
        return None
    torch._dynamo.reset()
    try:
        found = run(torch.compile(function, fullgraph=True), made, seed, device)
        for ours, theirs in zip(found, expected, strict=True):
            assert (ours is None) == (theirs is None), "a gradient is missing"
            if theirs is not None:
                limit = TOLERANCE.get(theirs.dtype, 0)
                torch.testing.assert_close(ours, theirs, rtol=limit, atol=limit, equal_nan=True)
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"
    return ""


def check(seed):
    """Returns a seed's verdict: "pass", "no program", "cpu too", or what is wrong."""
    source, made = program(seed)
    wrong = difference(source, made, seed, "npusim")
    if wrong is None:
        return "no program"
    if wrong == "":
        return "pass"
    if difference(source, made, seed, "cpu"):
        return "cpu too"
    return f"{source}    # {made}\n{wrong}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0:50", help="first:last")
    first, last = map(int, parser.parse_args().seeds.split(":"))
    import torch_npusim  # noqa: F401

    verdicts = {seed: check(seed) for seed in range(first, last)}
    short = ("pass", "no program", "cpu too")
    for seed, verdict in verdicts.items():
        if verdict not in short[:2]:
            print(f"== seed {seed}: {verdict}", flush=True)
    counts = {what: sum(v == what for v in verdicts.values()) for what in short}
    print(counts)
    return any(verdict not in short for verdict in verdicts.values())


if __name__ == "__main__":
    sys.exit(main())
