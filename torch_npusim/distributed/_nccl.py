# SPDX-License-Identifier: BSD-3-Clause
"""The backend "nccl" under the CUDA alias: simccl, behind the names that torch asks NCCL by."""

from datetime import timedelta
from typing import Any

from torch_npusim.distributed import Simccl, SimcclOptions, create_backend
from torch_npusim.distributed._recorder import is_set


class _Named(type):
    """Calls of the class make a backend; backends are its instances."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Simccl)

    def __call__(
        cls,
        store: Any,
        rank: int,
        size: int,
        options: "ProcessGroupNCCL.Options | timedelta | None" = None,
        device_id: Any = None,
        *,
        timeout: timedelta | None = None,
    ) -> Any:
        limit = options if isinstance(options, timedelta) else timeout
        chosen = ProcessGroupNCCL.Options()
        if isinstance(options, ProcessGroupNCCL.Options):
            chosen = options
        elif limit is not None:
            chosen._timeout = limit
        checks_nan = is_set("TORCH_NCCL_NAN_CHECK")
        blocks = is_set("TORCH_NCCL_BLOCKING_WAIT")
        made = create_backend(
            store,
            rank,
            size,
            chosen._timeout,
            chosen.group_name,
            list(chosen.global_ranks_in_group),
            label="nccl",
        )
        if chosen.split_from is not None:
            chosen.split_from._count_split()
        made.options.is_high_priority_stream = chosen.is_high_priority_stream
        made._set_enable_nan_check(checks_nan)
        made._set_blocking_wait(blocks)
        return made


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

    class Options(SimcclOptions):  # type: ignore[misc]
        """As NCCL's. Settings of hardware resources have no effect."""

        def __init__(self, is_high_priority_stream: bool = False) -> None:
            super().__init__("nccl", timedelta(minutes=10))
            self.is_high_priority_stream = is_high_priority_stream
            self.config = _Config()
            self.split_from: Any = None
            self.split_color = 0
