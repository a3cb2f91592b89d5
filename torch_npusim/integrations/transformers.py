# SPDX-License-Identifier: BSD-3-Clause
"""Hugging Face transformers: its tests on npusim, and a Trainer that resumes where it was.

The Trainer chooses its device through accelerate: `torch_npusim.integrations.accelerate.enable()`.

The constants are what the device file of transformers' own tests asks for. A file spec.py in the
folder where pytest starts, with this line, is the whole file:

    from torch_npusim.integrations.transformers import *

and then TRANSFORMERS_TEST_DEVICE=npusim TRANSFORMERS_TEST_DEVICE_SPEC=spec.py pytest tests/...
"""

import functools
from typing import Any

import torch

from torch_npusim.integrations._require import require
from torch_npusim.npusim import _device, memory, random

__all__ = [
    "DEVICE_COUNT_FN",
    "DEVICE_NAME",
    "EMPTY_CACHE_FN",
    "MANUAL_SEED_FN",
    "random_state_callback",
]

DEVICE_NAME = "npusim"
MANUAL_SEED_FN = random.manual_seed
EMPTY_CACHE_FN = memory.empty_cache
DEVICE_COUNT_FN = _device.device_count


def random_state_callback() -> Any:
    """Returns a callback with which a Trainer resumes with the devices' random states.

    The Trainer keeps those of the devices that it lists. It restores this callback only with
    TrainingArguments(restore_callback_states_from_checkpoint=True).

    Raises:
        ModuleNotFoundError: If transformers is not installed.
    """
    return _callback_class()()


@functools.cache
def _callback_class() -> type:
    callbacks = require("transformers.trainer_callback")

    class NPUSIMRandomState(callbacks.TrainerCallback, callbacks.ExportableState):  # type: ignore[misc, name-defined]
        """Keeps the random states in the Trainer's state file, as lists of bytes."""

        def __init__(self) -> None:
            self.stored: list[list[int]] = []

        def state(self) -> dict[str, Any]:
            """Returns what the Trainer writes when it saves a checkpoint."""
            now = [state.tolist() for state in random.get_rng_state_all()]
            return {"args": {}, "attributes": {"stored": now}}

        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            """Restores what a checkpoint has brought."""
            for index, state in enumerate(self.stored):
                random.set_rng_state(torch.tensor(state, dtype=torch.uint8), index)
            self.stored = []

    return NPUSIMRandomState
