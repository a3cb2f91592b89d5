# SPDX-License-Identifier: BSD-3-Clause
"""Any operator of op_db on operands of any layout, one operand at a time.

Oracle: the CPU on contiguous copies of the same numbers: values, dtype, class of exception, and the
gradient of that operand where results have turned gradients. Behind, before and between its
elements lie numbers that no result may have, so that a kernel which reads them is found without
luck. Where a dry run answers nothing, its results have the sizes and strides of the real ones.
"""

import functools
import re

from engine import Program, parts

START = """
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree
from torch_npusim.sim import dry, dry_run
torch.npusim.init()
neighbours = []

def laid(x, layout):
    poison = 7e4 if x.dtype.is_floating_point or x.dtype.is_complex else 100
    if x.dtype == torch.bool or not x.numel() or x.layout != torch.strided:
        return x.to("npusim")
    sizes, dims = list(x.shape), x.dim()
    buffer = torch.full((4 * x.numel() + 4096,), poison, dtype=x.dtype, device="npusim")
    if layout == "offset" or not dims:
        y = buffer[5:5 + x.numel()].view(sizes)
    elif layout == "every second":
        y = buffer[:2 * x.numel()].view(*sizes, 2)[..., 0]
    elif layout == "transposed":
        y = buffer[:x.numel()].view(sizes[::-1]).permute(*range(dims - 1, -1, -1))
    elif layout in ("expanded first", "expanded last"):
        d = 0 if layout == "expanded first" else dims - 1
        return laid(x.narrow(d, 0, 1), "at the end").expand(sizes)
    else:  # at the end of its storage, with another tensor's numbers behind it
        y = buffer[-x.numel():].view(sizes)
        neighbours.append(torch.full((1024,), poison, dtype=x.dtype, device="npusim"))
    return y.copy_(x)

def turned(x):
    numbers = torch.linspace(1, 2, x.numel(), dtype=x.dtype, device=x.device)
    return numbers.view(x.shape[::-1]).permute(*range(x.dim() - 1, -1, -1))

def strides_of(x):
    return x.shape, [s for n, s in zip(x.shape, x.stride()) if n != 1 and x.numel()]

def outcome(f, args, kwargs, of=None):
    try:
        made = pytree.tree_leaves(f(*args, **kwargs))
        made = [t for t in made if isinstance(t, torch.Tensor)]
        roots = [t for t in made if t.requires_grad and t.layout == torch.strided]
        if of is not None and roots:
            made += [torch.autograd.grad(roots, of, [*map(turned, roots)], allow_unused=True)[0]]
        return [t.detach() for t in made if t is not None], None
    except Exception as error:
        return None, type(error)

def ask(name, variant, dtype, sample, place, layout):
    (op,) = [o for o in op_db if o.name == name and o.variant_test_name == variant]
    torch.manual_seed(0)
    samples = list(op.sample_inputs_func(op, "cpu", dtype, False))
    sample = samples[sample % len(samples)]
    given = [sample.input, sample.args, sample.kwargs]
    leaves, spec = pytree.tree_flatten(given)
    tensors = [n for n, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    if not tensors:
        return
    chosen = tensors[place % len(tensors)]

    def with_gradient(these):
        if these[chosen].layout == torch.strided:
            these[chosen].requires_grad_(dtype.is_floating_point and these[chosen].dtype == dtype)
        return these

    def made():
        these = [x.detach().to("npusim") if isinstance(x, torch.Tensor) else x for x in leaves]
        these[chosen] = laid(leaves[chosen].detach(), layout)
        return with_gradient(these)

    ours = made()
    theirs = [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in leaves]
    if leaves[chosen].layout == torch.strided:
        theirs[chosen] = ours[chosen].detach().cpu().contiguous()
    with_gradient(theirs)

    def asked(these):
        first, args, kwargs = pytree.tree_unflatten(these, spec)
        torch.manual_seed(0)
        of = these[chosen] if these[chosen].requires_grad else None
        return outcome(op.op, (first, *args), kwargs, of)

    def asked_alike():  # on the CPU, whose layout is ours
        x = ours[chosen].detach()
        theirs[chosen] = torch.empty(0, dtype=x.dtype).set_(
            x.untyped_storage().cpu(), x.storage_offset(), x.shape, x.stride())
        return asked(with_gradient(theirs))

    (expected, refusal), (got, ours_refusal) = asked(theirs), asked(ours)
    if refusal or ours_refusal:
        if refusal != ours_refusal:  # the CPU may refuse the layout too
            assert asked_alike()[1] == ours_refusal, ours_refusal
        return
    assert len(got) == len(expected)
    for n, (a, b) in enumerate(zip(got, expected)):
        try:
            torch.testing.assert_close(a.cpu(), b, equal_nan=True)
        except AssertionError:
            assert n + 1 == len(got) and ours[chosen].requires_grad, f"{name}: values differ"
            b = asked_alike()[0][n]  # a gradient may depend on the layout
            torch.testing.assert_close(
                a.cpu(), b, equal_nan=True, msg=lambda m: f"{name}: values of gradients differ")
    with dry_run() as run:
        dry, _ = asked(made())
        if dry and not run.answers():
            for a, b in zip(got, dry, strict=True):
                assert strides_of(a) == strides_of(b), f"{name}: strides of a dry run differ"
"""
LAYOUTS = "offset; every second; transposed; expanded first; expanded last; at the end"
# Results that differ from call to call, that have no unique form, or whose order is not promised:
# patterns of whole names.
LEFT_OUT = re.compile(
    r"(new_)?empty\w*|resize_\w*|as_strided\w*|rand\w*|normal|log_normal|uniform|bernoulli|cauchy"
    r"|exponential|geometric|multinomial|argsort|sort|pca_lowrank|svd\w*|qr|geqrf|ormqr|lu\w*|pinverse"
    r"|tensor_split|cholesky\w*|triangular_solve|native_dropout_backward|linalg\.\w+"
    r"|\w*batch_norm\w*"  # another path, another rounding, for each layout
    r"|nn\.functional\.(\w*dropout\w*|rrelu|fractional_\w+|scaled_dot_\w+|multi_head_\w+|batch_norm|instance_norm)"
)


@functools.cache
def operators():
    """Names, variants and dtypes of op_db, with the number of samples."""
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    wanted = {torch.float32, torch.int64, torch.bfloat16}
    return [
        (op.name, op.variant_test_name, sorted(wanted & set(op.dtypes), key=str))
        for op in op_db
        if not LEFT_OUT.fullmatch(op.name) and wanted & set(op.dtypes)
    ]


def program(random) -> Program:
    """Thirty calls."""
    lines = []
    for _ in range(30):
        name, variant, dtypes = random.choice(operators())
        dtype, layout = random.choice(dtypes), random.choice(parts(LAYOUTS))
        sample, place = random.randrange(3), random.randrange(3)
        lines.append(f"ask({name!r}, {variant!r}, {dtype}, {sample}, {place}, {layout!r})")
    return Program(tuple(lines), START)
