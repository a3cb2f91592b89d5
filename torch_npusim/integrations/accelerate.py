# SPDX-License-Identifier: BSD-3-Clause
"""Hugging Face accelerate: Accelerator() on npusim, and what its lists of devices leave out.

    from torch_npusim.integrations import accelerate as npusim_accelerate
    npusim_accelerate.enable()
    accelerator = Accelerator()  # its device is npusim

accelerate 1.15 finds devices by name and has no place for others, but for ACCELERATE_TORCH_DEVICE.
Everything here is for one process; several processes need the CUDA alias. transformers' Trainer
stands on accelerate, so all of it serves there too.
"""

import os
from typing import Any

import torch

from torch_npusim._names import is_npusim
from torch_npusim.integrations._require import require
from torch_npusim.npusim import _device, memory, random

__all__ = ["RandomState", "enable", "max_memory", "use_fp16"]

VARIABLE = "ACCELERATE_TORCH_DEVICE"


def enable(device: str = "npusim") -> None:
    """Makes every Accelerator() and every Trainer of this process use `device`.

    It sets the environment variable ACCELERATE_TORCH_DEVICE, so child processes inherit it;
    setting it in the shell instead does the same.

    Args:
        device: "npusim", or one of the devices: "npusim:1".

    Raises:
        ModuleNotFoundError: If accelerate is not installed.
        ValueError: If `device` is of another type.
        RuntimeError: If accelerate has chosen another device already: it chooses once a process.
    """
    wanted = torch.device(device)
    if not is_npusim(wanted):
        raise ValueError(f"enable({device!r}): expected an npusim device")
    chosen = require("accelerate.state").PartialState._shared_state.get("device")
    if chosen not in (None, wanted):
        raise RuntimeError(
            f"accelerate has already chosen '{chosen}' in this process; call enable() before the "
            f"first Accelerator, PartialState or TrainingArguments"
        )
    os.environ[VARIABLE] = str(wanted)


def max_memory(cpu: int | None = None) -> dict[int | str, int]:
    """Returns the free bytes of every npusim device, as `max_memory=` of accelerate takes them.

    accelerate's own get_max_memory() does not see the devices, and `device_map="auto"` then means
    CPU. That accelerate warns "Device 0 is not available" has the same reason and no effect.

    Args:
        cpu: Bytes that layers may take on CPU; None: no layer may go there.
    """
    free: dict[int | str, int] = {
        index: memory.mem_get_info(index)[0] for index in range(_device.device_count())
    }
    return free if cpu is None else {**free, "cpu": cpu}


def use_fp16(accelerator: Any, **scaler: Any) -> None:
    """Turns on mixed precision with float16 and gradient scaling, before prepare().

    Accelerator(mixed_precision="fp16") refuses every device but those it lists, so make it without
    and call this. For a Trainer, call it with `trainer.accelerator` before train().
    "bf16" needs no help.

    Args:
        accelerator: An accelerate.Accelerator on npusim.
        scaler: Arguments of torch.amp.GradScaler.

    Raises:
        ValueError: If the accelerator is on another device, or has another mixed precision.
        RuntimeError: If it has prepared a model or an optimizer already.
    """
    if not is_npusim(accelerator.device) or accelerator.mixed_precision != "no":
        raise ValueError(
            f"use_fp16() needs an Accelerator on npusim without mixed precision, but this one has "
            f"device '{accelerator.device}' and mixed_precision='{accelerator.mixed_precision}'"
        )
    if accelerator._models or accelerator._optimizers:
        raise RuntimeError("use_fp16() has no effect after prepare(); call it before")
    accelerator.state._mixed_precision = "fp16"
    accelerator.native_amp = True
    accelerator.scaler = torch.amp.GradScaler("npusim", **scaler)


class RandomState:
    """The generators of the npusim devices, for Accelerator.register_for_checkpointing().

    save_state() keeps the random state of the devices that accelerate lists; without this object
    dropout after load_state() differs from an uninterrupted run.
    """

    def state_dict(self) -> dict[str, Any]:
        """Returns the states of all devices: one byte tensor each."""
        return {"npusim": random.get_rng_state_all()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what state_dict() returned."""
        random.set_rng_state_all(state["npusim"])
