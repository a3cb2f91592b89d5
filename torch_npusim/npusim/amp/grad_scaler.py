# SPDX-License-Identifier: BSD-3-Clause
"""GradScaler: torch.amp's, for "npusim"."""

import torch

__all__ = ["GradScaler"]


class GradScaler(torch.amp.GradScaler):
    """torch.amp.GradScaler("npusim", ...).

    Args:
        init_scale: First scale.
        growth_factor: Factor of the scale after `growth_interval` good steps.
        backoff_factor: Factor of the scale after a step with infinite gradients.
        growth_interval: Number of good steps in a row.
        enabled: Whether to scale at all.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        super().__init__(
            "npusim",
            init_scale=init_scale,
            growth_factor=growth_factor,
            backoff_factor=backoff_factor,
            growth_interval=growth_interval,
            enabled=enabled,
        )
