# SPDX-License-Identifier: BSD-3-Clause
"""Mixed precision: torch.amp with the device type filled in."""

from torch_npusim.npusim.amp.autocast_mode import autocast, custom_bwd, custom_fwd
from torch_npusim.npusim.amp.grad_scaler import GradScaler

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]
