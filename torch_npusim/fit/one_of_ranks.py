# SPDX-License-Identifier: BSD-3-Clause
"""A script that torchrun would start on many ranks, as one of them: the others are like it."""

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch.distributed import device_mesh, distributed_c10d

from torch_npusim.patches import Changes


def variables(ranks: int) -> dict[str, str]:
    """Returns what torchrun tells the first of so many ranks."""
    return {
        "RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0", "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "localhost", "MASTER_PORT": "29500",
    }  # fmt: skip


@contextmanager
def one_of(ranks: int) -> Iterator[None]:
    """Makes the first of so many ranks of the program in a `with` block.

    Every group is one of the backend "uniform", whatever the program names.

    Args:
        ranks: Of the program; 0: it is left as it is.
    """
    if not ranks:
        yield
        return
    changes, before = Changes(), dict(os.environ)

    @functools.wraps(distributed_c10d.init_process_group)
    def begin(backend: str | None = None, *_: Any, **options: Any) -> None:
        kept = {name: options[name] for name in ("timeout", "group_name") if name in options}
        store = dist.HashStore()  # type: ignore[attr-defined]
        original("uniform", store=store, rank=0, world_size=ranks, **kept)

    @functools.wraps(distributed_c10d.new_group)
    def group(ranks: Any = None, timeout: Any = None, *_: Any, **options: Any) -> Any:
        kept = {name: options[name] for name in ("group_desc",) if name in options}
        return original_group(ranks, timeout, "uniform", **kept)

    original, original_group = distributed_c10d.init_process_group, distributed_c10d.new_group
    for module in (dist, distributed_c10d, device_mesh):
        changes.set(module, "init_process_group", begin)
        changes.set(module, "new_group", group)
    os.environ.update(variables(ranks))
    try:
        yield
    finally:
        try:
            if dist.is_initialized():
                dist.destroy_process_group()
        finally:
            changes.undo()
            os.environ.clear()
            os.environ.update(before)
