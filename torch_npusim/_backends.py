# SPDX-License-Identifier: BSD-3-Clause
"""Registers simccl and uniform with torch.distributed; each is loaded when a group is made."""

from typing import Any

import torch


def register() -> None:
    """Registers both, where torch has torch.distributed."""
    if not torch.distributed.is_available():
        return
    backend = torch.distributed.Backend
    for name, create in (("simccl", _simccl), ("uniform", _uniform)):
        backend.register_backend(name, create, extended_api=True, devices=["npusim"])


def _simccl(common: Any, _: Any) -> Any:
    from torch_npusim import distributed

    return distributed.create_backend(
        common.store,
        common.group_rank,
        common.group_size,
        common.timeout,
        common.group_id,
        list(common.global_ranks_in_group),
    )


def _uniform(common: Any, _: Any) -> Any:
    from torch_npusim import distributed

    return distributed.create_uniform(
        common.group_rank,
        common.group_size,
        common.timeout,
        common.group_id,
        list(common.global_ranks_in_group),
    )
