# SPDX-License-Identifier: BSD-3-Clause
"""Patches of torch.distributed: the backend of a device, and groups made of parts of a group."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from torch_npusim._names import is_npusim


def backends_of_a_group(original: Callable[..., Any]) -> Callable[..., Any]:
    """torch.distributed knows by heart which backend serves which device.

    Four things in one function: a group made without a backend calls gloo its default although
    the accelerator's is another; gloo takes memory that the host cannot read and dies of SIGSEGV
    (its isend and irecv do not ask what device a tensor is on); a group of gloo beside one that is
    bound to a device is asked for that device's backend; the backend "fake" lists the devices it
    knows. pytorch/pytorch 177103 asks for the second.
    """
    from torch.distributed import distributed_c10d as c10d

    @functools.wraps(original)
    def make(
        group_size: int, group_rank: int, ranks: list[int], backend: Any, *args: Any, **kwargs: Any
    ) -> Any:
        text = str(backend).lower()
        capability = c10d.Backend.backend_capability
        accelerator = torch.accelerator.current_accelerator()
        if text == c10d.Backend.UNDEFINED and accelerator is not None and is_npusim(accelerator):
            backend = c10d.Backend(c10d.get_default_backend_for_device(accelerator))
        if "npusim" not in capability["fake"]:
            capability["fake"] = [*capability["fake"], "npusim"]
        for device, remedy in (("npusim", "simccl"), ("cuda", "nccl")):
            if f"{device}:gloo" in text and is_npusim(torch.device(device)):
                raise ValueError(
                    f"the backend {text!r}: gloo cannot reach the memory of npusim; write "
                    f"{text.replace(f'{device}:gloo', f'{device}:{remedy}')!r}, whose bytes travel "
                    f"through gloo too"
                )
        bound = kwargs.get("device_id")
        if text == c10d.Backend.GLOO and bound is not None and is_npusim(bound):
            kwargs["device_id"] = None
        return original(group_size, group_rank, ranks, backend, *args, **kwargs)

    return make


def parts_of_a_group(original: Callable[..., Any]) -> Callable[..., Any]:
    """split_group() asks for a backend with communicators that can be split, as NCCL's.

    init_device_mesh() calls it wherever the default group has a device_id, so no mesh with more
    than one dimension could be made. Not a defect of torch; a group of simccl costs nothing to make
    anew.
    """
    from torch.distributed import distributed_c10d as c10d

    @functools.wraps(original)
    def split_group(
        parent_pg: Any = None,
        split_ranks: list[list[int]] | None = None,
        timeout: Any = None,
        pg_options: Any = None,
        group_desc: str | None = None,
        backend: Any = None,
    ) -> Any:
        parent = parent_pg or c10d._get_default_group()
        if not split_ranks or not _is_simccl(parent):
            return original(parent_pg, split_ranks, timeout, pg_options, group_desc, backend)
        mine = next((part for part in split_ranks if parent.rank() in part), None)
        if mine is None:
            return None
        return c10d.new_group(
            [c10d.get_global_rank(parent, rank) for rank in mine],
            timeout=timeout,
            backend=backend or c10d._world.pg_map[parent][0],
            pg_options=pg_options,
            use_local_synchronization=True,
            group_desc=group_desc,
        )

    return split_group


def _is_simccl(group: Any) -> bool:
    from torch_npusim.distributed import Simccl

    try:
        return isinstance(group._get_backend(torch.device("npusim")), Simccl)
    except RuntimeError:  # it has none for this device
        return False
