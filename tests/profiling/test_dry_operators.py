# SPDX-License-Identifier: BSD-3-Clause
"""Results of a dry run have the shapes of the operators' own, or the operator is refused by name.

`make sweeps` tries all operators of op_db.
"""

import pytest
import torch
from ops.swept import ALL, NPU, on_device, over_operators, tensors_of
from torch.utils._pytree import tree_map

from torch_npusim.profiling import dry_run


def without_values(value):
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=NPU)


def shapes(made):
    return [(x.shape, x.dtype, x.layout) for x in tensors_of(made)]


@over_operators
def test_a_dry_run_knows_the_shape_or_refuses_the_operator(op):
    if op.name.startswith("sparse."):
        pytest.skip("samples are sparse tensors, which test_dry_run.py has")
    for sample in list(op.sample_inputs("cpu", torch.float32))[: 10 if ALL else 2]:
        x, args, kwargs = on_device(sample)
        try:
            real = shapes(op(x, *args, **kwargs))
        except (RuntimeError, NotImplementedError):
            continue  # npusim refuses it
        try:
            with dry_run():
                x, args, kwargs = tree_map(
                    without_values, (sample.input, sample.args, sample.kwargs)
                )
                dry = shapes(op(x, *args, **kwargs))
        except RuntimeError as error:
            if "values, and tensors of a dry run have none" not in str(error):
                raise
        else:
            assert dry == real
