# SPDX-License-Identifier: BSD-3-Clause
"""The operators of op_db that sweeps run: of each commit another twelfth; `make sweeps`: all."""

import os
import random
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from parts import one_in
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

NPU = torch.device("npusim")
ALL = os.environ.get("NPUSIM_TESTS") == "sweeps"
ONE_IN = 12  # of them otherwise

# What does not define its result's values reads and writes nothing.
WITHOUT_VALUES = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty",
                  "new_empty_strided", "resize_", "resize_as_"}  # fmt: skip


def _runs(op: Any) -> bool:
    if op.name in WITHOUT_VALUES or op.name.startswith("jiterator"):  # CUDA's alone
        return False
    return torch.float32 in op.dtypes


EVERY = [op for op in op_db if _runs(op)]
PART = [op for op in EVERY if ALL or one_in(ONE_IN, op.formatted_name)]
over_every_operator = pytest.mark.parametrize("op", EVERY, ids=lambda op: op.formatted_name)
over_operators = pytest.mark.parametrize("op", PART, ids=lambda op: op.formatted_name)


def samples_of(
    op: Any, dtype: torch.dtype = torch.float32, requires_grad: bool = False
) -> Iterator[Any]:
    """Yields the operator's samples on the CPU, always the same ones.

    OpInfo.sample_inputs() inspects the stack before each sample, which takes a tenth of a second.
    """
    torch.default_generator.manual_seed(0)
    numpy.random.seed(0)
    random.seed(0)
    yield from op.sample_inputs_func(op, "cpu", dtype, requires_grad)


def on_device(sample: Any) -> tuple[Any, Any, Any]:
    """Returns input, arguments and keywords of a sample, on npusim."""
    moved: tuple[Any, Any, Any] = tree_map(
        lambda value: value.to(NPU) if isinstance(value, torch.Tensor) else value,
        (sample.input, sample.args, sample.kwargs),
    )
    return moved


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """Returns the tensors among the leaves of a tree."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
