# SPDX-License-Identifier: BSD-3-Clause
"""Results of a dry run lie as the operators' own do, or the operator is refused by name.

Every second sample has operands whose first dimension is the innermost one.

`make sweeps` tries all operators of op_db.
"""

import pytest
import torch
from ops.swept import ALL, on_device, over_operators, samples_of, tensors_of

from torch_npusim.sim import dry_run


def shapes(made):
    return [(x.shape, x.dtype, x.layout, strides_of(x)) for x in tensors_of(made)]


def strides_of(x):
    """Strides that a program can tell."""
    if x.layout != torch.strided or not x.numel():
        return ()
    return [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1]


def turned(x):
    if not isinstance(x, torch.Tensor) or x.layout != torch.strided:
        return x
    dims = tuple(reversed(range(x.dim())))
    return x.permute(dims).contiguous().permute(dims)


@over_operators
def test_a_dry_run_knows_the_shape_or_refuses_the_operator(op):
    if op.name.startswith("sparse."):
        pytest.skip("samples are sparse tensors, which test_dry_run.py has")
    for number, sample in enumerate(list(samples_of(op))[: 10 if ALL else 2]):
        if number % 2:
            sample = sample.transform(turned)
        x, args, kwargs = on_device(sample)
        try:
            real = shapes(op(x, *args, **kwargs))
        except (RuntimeError, NotImplementedError):
            continue  # npusim refuses it
        with dry_run() as run:
            try:
                x, args, kwargs = on_device(sample)
                dry = shapes(op(x, *args, **kwargs))
            except NotImplementedError as error:
                assert "tensors of a dry run have none" in str(error)  # noqa: PT017
                continue
            except RuntimeError:
                assert run.answers()  # its values are not the sample's
                continue
        if not run.answers():
            assert dry == real
