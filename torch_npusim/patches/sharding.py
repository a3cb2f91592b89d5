# SPDX-License-Identifier: BSD-3-Clause
"""Patches of DTensor: how operators are split among ranks."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from torch_npusim._changes import is_version


def split_attention(original: dict[Any, Any]) -> dict[Any, Callable[[Any], Any]]:
    """DTensor splits CUDA's attention by batch and heads, and the CPU's, which npusim runs, not."""
    ops = torch.ops.aten
    return {
        ops._scaled_dot_product_flash_attention_for_cpu.default: functools.partial(_split, 2),
        ops._scaled_dot_product_flash_attention_for_cpu_backward.default: functools.partial(
            _split, 3
        ),
    }


def _split(results: int, schema: Any) -> Any:
    """Returns the strategies; results and operands are [batch, heads, ...], a mask broadcasts."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor._ops.utils import expand_to_full_mesh_op_strategy

    operands = [*schema.args_strategy, *schema.kwargs_strategy]
    masks = [mask.strategies[0].output_spec.placements for mask in schema.kwargs_strategy]

    def of_dim(dim: int) -> list[Any]:
        parts = [Shard(dim) if t.ndim > 2 and t.shape[dim] > 1 else Replicate() for t in operands]
        return [Shard(dim)] * results + parts

    def fits(inputs: list[Any], _: Any) -> bool:
        # Operands by name are not redistributed.
        return [spec.placements for spec in inputs[len(operands) - len(masks) :]] == masks

    name = "is_valid_strategy_cb" if is_version("<2.14") else "full_mesh_strategy_filter"
    options: dict[str, Any] = {name: fits}
    return expand_to_full_mesh_op_strategy(
        schema.get_mesh_from_args(),
        schema,
        [[Replicate()] * (results + len(operands)), of_dim(0), of_dim(1)],
        input_index=results,
        **options,
    )
