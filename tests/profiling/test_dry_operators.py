# SPDX-License-Identifier: BSD-3-Clause
"""Results of a dry run lie as the operators' own do, or the operator is refused by name.

Operands lie in rows, turned, expanded, with two dimensions swapped or with gaps: a layout for each
sample, at each commit another. Gradients lie as their own do. `make sweeps` has ten samples.
"""

import pytest
import torch
from ops.swept import ALL, NPU, over_every_operator, samples_of, tensors_of
from parts import part
from torch.utils._pytree import tree_map

from torch_npusim.sim import dry_run


def shapes(made):
    return [(x.shape, x.dtype, x.layout, strides_of(x)) for x in tensors_of(made)]


def strides_of(x):
    """Strides that a program can tell."""
    if x.layout != torch.strided or not x.numel():
        return ()
    return [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1]


def turned(x):
    dims = tuple(reversed(range(x.dim())))
    return x.permute(dims).contiguous().permute(dims)


def swapped(x):
    return x.transpose(0, 1).contiguous().transpose(0, 1) if x.dim() > 1 else x


def with_gaps(x):
    return x.repeat_interleave(2, -1)[..., ::2] if x.dim() else x


def expanded(x):
    return x[:1].expand(x.shape) if x.dim() and len(x) > 1 else x


LAYOUTS = (lambda x: x, turned, expanded, swapped, with_gaps)


def laid(sample, layout):
    return sample.transform(
        lambda x: layout(x) if isinstance(x, torch.Tensor) and x.layout == torch.strided else x
    )


def moved(x):
    """The same on the device, an expanded tensor as one."""
    part = x[tuple(slice(1) if not stride else slice(None) for stride in x.stride())]
    return part.to(NPU).expand(x.shape) if 0 in x.stride() and x.numel() else x.to(NPU)


def lies(op, sample):
    """The results, and gradients where the first result has one."""
    call = sample.input, sample.args, sample.kwargs
    x, args, kwargs = tree_map(lambda one: moved(one) if torch.is_tensor(one) else one, call)
    leaves = [one for one in tensors_of((x, args, kwargs)) if one.is_floating_point()]
    if op.supports_autograd:
        leaves = [one.requires_grad_() for one in leaves if one.layout == torch.strided]
    made = op(x, *args, **kwargs)
    wanted = [one for one in tensors_of(made) if one.requires_grad and one.layout == torch.strided]
    grads = [turned(torch.ones_like(one)) for one in wanted[:1]]
    found = torch.autograd.grad(wanted[:1], leaves, grads, allow_unused=True) if grads else ()
    return shapes((made, found))


@over_every_operator
def test_a_dry_run_knows_the_shape_or_refuses_the_operator(op):
    if op.name.startswith("sparse."):
        pytest.skip("samples are sparse tensors, which test_dry_run.py has")
    first = int(part()[0][:6], 16) % len(LAYOUTS)
    for number, sample in enumerate(list(samples_of(op))[: 10 if ALL else 3]):
        laid_out = laid(sample, LAYOUTS[(first + number) % len(LAYOUTS)])
        try:
            real = lies(op, laid_out)
        except (RuntimeError, NotImplementedError):
            continue  # npusim refuses it
        with dry_run() as run:
            try:
                dry = lies(op, laid_out)
            except NotImplementedError as error:
                assert "tensors of a dry run have none" in str(error)  # noqa: PT017
                continue
            except RuntimeError:
                assert run.answers()  # its values are not the sample's
                continue
        if not run.answers():
            assert dry == real
