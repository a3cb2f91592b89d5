# SPDX-License-Identifier: BSD-3-Clause
"""Patches of torch.distributed: the backend of a device."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from torch_npusim._names import is_npusim


def backends_of_a_group(original: Callable[..., Any]) -> Callable[..., Any]:
    """torch.distributed knows by heart which backend serves which device.

    Six things in one function: a group made without a backend calls gloo its default although
    the accelerator's is another; gloo takes memory that the host cannot read and dies of SIGSEGV
    (its isend and irecv do not ask what device a tensor is on); a group of gloo beside one that is
    bound to a device is asked for that device's backend; the backend "fake" lists the devices it
    knows; a group of several backends has no default, and warns when it is asked for hooks, unless
    NCCL is among them; and under the CUDA alias a group of gloo serves the device too, by simccl.
    pytorch/pytorch 177103 asks for the second, 189193 for the fifth.
    """
    from torch.distributed import distributed_c10d as c10d

    @functools.wraps(original)
    def make(
        group_size: int,
        group_rank: int,
        ranks: list[int],
        backend: Any,
        store: Any,
        group_name: str,
        **kwargs: Any,
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
        made = original(group_size, group_rank, ranks, backend, store, group_name, **kwargs)
        group, its_store = made
        if not isinstance(group, c10d.ProcessGroup):
            return made  # this rank is no member
        if group.name() == c10d.Backend.UNDEFINED:
            serving = c10d.BackendConfig(c10d.Backend(backend)).get_device_backend_map()
            main = serving.get("npusim", next(iter(serving.values())))
            group._set_default_backend(c10d.Backend.backend_type_map[main])
        served = any(map(is_npusim, group._device_types))
        if text == c10d.Backend.GLOO and is_npusim(torch.device("cuda")) and not served:
            from torch_npusim.distributed import create_backend

            own_store = c10d.PrefixStore("npusim/", its_store)
            limit = kwargs["timeout"]
            own = create_backend(
                own_store, group_rank, group_size, limit, group_name, ranks, label="gloo"
            )
            kind = c10d.ProcessGroup.BackendType.CUSTOM
            group._register_backend(torch.device("npusim"), kind, own)
            group._set_group_name(c10d.GroupName(group_name))  # of all its backends
            group._set_group_desc(group.group_desc)
        return made

    return make
