# SPDX-License-Identifier: BSD-3-Clause
"""A patch of transformers: the loop of beam search in a dry run."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from torch_npusim._names import is_npusim


def beams_that_go_on(original: Callable[..., Any]) -> Callable[..., Any]:
    """Beams of a dry run go on to their longest length, as no score says that they have ended.

    The longest length is known: it stops all beams, and the loop with them.
    """

    @functools.wraps(original)
    def go_on(
        better: torch.Tensor, finished: torch.Tensor, stopped: torch.Tensor, *args: Any
    ) -> Any:
        from torch_npusim.sim import dry

        if dry.active() and is_npusim(stopped.device):
            return not stopped.any()
        return original(better, finished, stopped, *args)

    return go_on
