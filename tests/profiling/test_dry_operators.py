# SPDX-License-Identifier: BSD-3-Clause
"""Results of a dry run have the shapes of the operators' own, or the operator is refused by name.

`make sweeps` tries all operators of op_db.
"""

import pytest
from ops.swept import ALL, on_device, over_operators, samples_of, tensors_of

from torch_npusim.sim import dry_run


def shapes(made):
    return [(x.shape, x.dtype, x.layout) for x in tensors_of(made)]


@over_operators
def test_a_dry_run_knows_the_shape_or_refuses_the_operator(op):
    if op.name.startswith("sparse."):
        pytest.skip("samples are sparse tensors, which test_dry_run.py has")
    for sample in list(samples_of(op))[: 10 if ALL else 2]:
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
