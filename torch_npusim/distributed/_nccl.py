# SPDX-License-Identifier: BSD-3-Clause
"""The backend "nccl" under the CUDA alias: simccl, behind the names that torch asks NCCL by."""

import os
from datetime import timedelta
from typing import Any

from torch_npusim.distributed import Simccl, create_backend


class _Named(type):
    """Calls of the class make a backend; backends are its instances."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Simccl)

    def __call__(
        cls,
        store: Any,
        rank: int,
        size: int,
        options: "ProcessGroupNCCL.Options | None" = None,
        device_id: Any = None,
    ) -> Any:
        chosen = options or ProcessGroupNCCL.Options()
        made = create_backend(
            store,
            rank,
            size,
            chosen._timeout,
            chosen.group_name,
            list(chosen.global_ranks_in_group),
            label="nccl",
        )
        made._set_enable_nan_check(_is_set("TORCH_NCCL_NAN_CHECK"))
        return made


def _is_set(name: str) -> bool:
    """Reads a variable of torch that is a truth value, as torch does."""
    value = os.environ.get(name, "0").lower()
    if value in ("y", "yes", "1", "t", "true"):
        return True
    if value in ("n", "no", "0", "f", "false"):
        return False
    raise ValueError(f"Invalid value for environment variable: {name}={value}")


class _Config:
    """The tunables of a communicator: kept, and without effect on a simulated fabric."""

    def __init__(self) -> None:
        self.blocking = True
        self.cga_cluster_size = 0
        self.min_ctas = 0
        self.max_ctas = 0
        self.net_name: str | None = None
        self.split_share = False


class ProcessGroupNCCL(metaclass=_Named):
    """Stands for torch.distributed.ProcessGroupNCCL."""

    # Values of `Options.config.cta_policy`.
    NCCL_CTA_POLICY_DEFAULT = 0
    NCCL_CTA_POLICY_EFFICIENCY = 1
    NCCL_CTA_POLICY_ZERO = 2

    class Options:
        """As NCCL's. Settings of hardware resources have no effect."""

        def __init__(self, is_high_priority_stream: bool = False) -> None:
            self.is_high_priority_stream = is_high_priority_stream
            self.config = _Config()
            self._timeout = timedelta(minutes=10)
            self.group_name = ""
            self.global_ranks_in_group: list[int] = []
            self.split_from: Any = None
            self.split_color = 0
            self.backend = "nccl"
