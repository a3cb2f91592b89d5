# SPDX-License-Identifier: BSD-3-Clause
"""Any operator of op_db on operands of any layout, one operand at a time.

Oracle: the CPU on contiguous copies of the same numbers: values, dtype, class of exception. Behind,
before and between the elements of the operand lie numbers that no result may have, so that a kernel
which reads them is found without luck.
"""

import functools
import re

from engine import Program

ENVIRONMENT = {"NPUSIM_FAILED_FREE": "abort", "NPUSIM_DEVICE_MEMORY": "512MiB"}

START = """
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree
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
        x = x.narrow(d, 0, 1).expand(sizes)
        small = sizes[:d] + [1] + sizes[d + 1:]
        y = buffer[:x.numel() // sizes[d]].view(small)
        y.copy_(x.narrow(d, 0, 1))
        return y.expand(sizes)
    else:  # at the end of its storage, with another tensor's numbers behind it
        y = buffer[-x.numel():].view(sizes)
        neighbours.append(torch.full((1024,), poison, dtype=x.dtype, device="npusim"))
    return y.copy_(x)

def outcome(f, args, kwargs):
    try:
        return [t.detach().cpu() for t in pytree.tree_leaves(f(*args, **kwargs))
                if isinstance(t, torch.Tensor)], None
    except Exception as error:
        return None, type(error)

def ask(name, variant, dtype, sample, place, layout):
    (op,) = [o for o in op_db if o.name == name and o.variant_test_name == variant]
    samples = list(op.sample_inputs("cpu", dtype))
    sample = samples[sample % len(samples)]
    given = [sample.input, sample.args, sample.kwargs]
    leaves, spec = pytree.tree_flatten(given)
    tensors = [n for n, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    if not tensors:
        return
    chosen = tensors[place % len(tensors)]
    ours = [x.detach().to("npusim") if isinstance(x, torch.Tensor) else x for x in leaves]
    ours[chosen] = laid(leaves[chosen].detach(), layout)
    theirs = [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in leaves]
    if leaves[chosen].layout == torch.strided:
        theirs[chosen] = ours[chosen].cpu().contiguous()
    results = []
    for these in (theirs, ours):
        first, args, kwargs = pytree.tree_unflatten(these, spec)
        torch.manual_seed(0)
        results.append(outcome(op.op, (first, *args), kwargs))
    (expected, refusal), (got, ours_refusal) = results
    if refusal or ours_refusal:
        if refusal != ours_refusal:  # the CPU may refuse the layout too
            if "expanded" in layout:
                return
            sizes, strides = ours[chosen].shape, ours[chosen].stride()
            theirs[chosen] = torch.empty_strided(sizes, strides, dtype=dtype).copy_(theirs[chosen])
            first, args, kwargs = pytree.tree_unflatten(theirs, spec)
            assert outcome(op.op, (first, *args), kwargs)[1] == ours_refusal, ours_refusal
        return
    assert len(got) == len(expected)
    for a, b in zip(got, expected):
        torch.testing.assert_close(a, b, equal_nan=True, msg=lambda m: f"{name}: values differ")
"""
LAYOUTS = (
    "offset", "every second", "transposed", "expanded first", "expanded last", "at the end"
)  # fmt: skip
# Results that differ from call to call, that have no unique form, or whose order is not promised:
# patterns of whole names.
LEFT_OUT = re.compile(
    r"(new_)?empty\w*|resize_\w*|as_strided\w*|rand\w*|normal|log_normal|uniform|bernoulli|cauchy"
    r"|exponential|geometric|multinomial|argsort|pca_lowrank|svd\w*|qr|geqrf|ormqr|lu\w*|pinverse"
    r"|tensor_split|cholesky\w*|triangular_solve|native_dropout_backward|linalg\.\w+"
    r"|nn\.functional\.(\w*dropout\w*|rrelu|fractional_\w+|scaled_dot_\w+|multi_head_\w+|batch_norm|instance_norm)"
)
# Relatives of what read memory behind its operand: asked ten times as often.
NEAR = (
    "kthvalue",
    "median",
    "nanmedian",
    "mode",
    "topk",
    "quantile",
    "nanquantile",
    "native_group_norm",
)


@functools.cache
def operators():
    """Names, variants and dtypes of op_db, with the number of samples."""
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    wanted = (torch.float32, torch.int64, torch.bfloat16)
    return [
        (op.name, op.variant_test_name, [t for t in wanted if t in op.dtypes])
        for op in op_db
        if not LEFT_OUT.fullmatch(op.name)
        for _ in range(10 if op.name in NEAR else 1)
    ]


def program(random) -> Program:
    """Thirty calls."""
    lines = []
    while len(lines) < 30:
        name, variant, dtypes = random.choice(operators())
        if not dtypes:
            continue
        dtype, layout = random.choice(dtypes), random.choice(LAYOUTS)
        sample, place = random.randrange(3), random.randrange(3)
        lines.append(f"ask({name!r}, {variant!r}, {dtype}, {sample}, {place}, {layout!r})")
    return Program(tuple(lines), START)


_WRAPPED = """
asked = outcome
def outcome(f, args, kwargs):
    on_device = any(x.device.type == "npusim" for x in pytree.tree_leaves([args, kwargs])
                    if isinstance(x, torch.Tensor))
    {}
    return asked(f, args, kwargs)
"""
PLANTS = {
    "a kernel reads its operand as if it were contiguous": _WRAPPED.format(
        """if on_device:
        args = pytree.tree_map(lambda x: x.as_strided(x.shape, torch.empty(x.shape).stride())
                               if isinstance(x, torch.Tensor) and 0 in x.stride() else x, args)"""
    ),
    "the first element of an operand with an offset is left out": _WRAPPED.format(
        """if on_device:
        args = pytree.tree_map(
            lambda x: x.flatten().roll(1).view(x.shape)
            if isinstance(x, torch.Tensor) and x.storage_offset() else x, args)"""
    ),
    "a transposed operand is read by rows": _WRAPPED.format(
        """if on_device:
        args = pytree.tree_map(
            lambda x: x.t().contiguous().view(x.shape)
            if isinstance(x, torch.Tensor) and x.dim() == 2 and x.stride(0) == 1 else x, args)"""
    ),
    "a refusal is an answer": _WRAPPED.format(
        """result = asked(f, args, kwargs)
    if on_device and result[1]:
        return [], None"""
    ),
}
