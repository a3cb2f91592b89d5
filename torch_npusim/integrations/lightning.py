# SPDX-License-Identifier: BSD-3-Clause
"""Lightning: the accelerator "npusim" and the strategy "single_npusim", for Trainer and Fabric.

    from torch_npusim.integrations import lightning as npusim_lightning
    npusim_lightning.register()
    trainer = Trainer(accelerator="npusim", strategy="single_npusim", devices=[1])

The strategy has to be named: Lightning 2.6 puts every single device that is not CUDA, MPS or XLA
on CPU, and gives mixed precision to "cuda". The strategy takes its device from the accelerator and
hands mixed precision to npusim. Without it the accelerator refuses to train on the CPU.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

import torch

from torch_npusim._names import is_npusim
from torch_npusim.integrations._require import is_installed, require
from torch_npusim.npusim import _device, memory

__all__ = ["ACCELERATOR", "STRATEGY", "register"]

ACCELERATOR = "npusim"
STRATEGY = "single_npusim"

# Where Trainer and Fabric live in the two distributions of Lightning.
_DISTRIBUTIONS = {
    "lightning": ("lightning.pytorch", "lightning.fabric"),
    "pytorch_lightning": ("pytorch_lightning", "lightning_fabric"),
}


def register() -> None:
    """Adds the accelerator and the strategy to the registries of Lightning; again is no error.

    To those of `lightning` and of `pytorch_lightning`, whichever of them the process has imported;
    if it has imported neither, to those of the installed one, `lightning` first.

    Raises:
        ModuleNotFoundError: If neither is installed.
    """
    chosen = [package for package in _DISTRIBUTIONS if sys.modules.get(package)]
    if not chosen:
        chosen = [package for package in _DISTRIBUTIONS if is_installed(package)][:1]
    for package in chosen or ["lightning"]:
        trainer, fabric = (require(module) for module in _DISTRIBUTIONS[package])
        _register_with(trainer, fabric)


def _register_with(trainer: ModuleType, fabric: ModuleType) -> None:
    accelerators = import_module(f"{trainer.__name__}.accelerators")
    fabric_accelerators = import_module(f"{fabric.__name__}.accelerators")
    if ACCELERATOR in accelerators.AcceleratorRegistry:
        return
    accelerator = _derive("NPUSIMAccelerator", _Accelerator, accelerators.Accelerator)
    for registry in (accelerators.AcceleratorRegistry, fabric_accelerators.ACCELERATOR_REGISTRY):
        registry.register(ACCELERATOR, accelerator, description="Simulated device of torch_npusim")
    for package, registry_name, precision in (
        (trainer, "StrategyRegistry", "precision_plugin"),
        (fabric, "STRATEGY_REGISTRY", "precision"),
    ):
        strategies = import_module(f"{package.__name__}.strategies")
        base = strategies.SingleDeviceStrategy
        mixed = import_module(f"{package.__name__}.plugins").MixedPrecision
        plugin = {precision: _precision_property(getattr(base, precision), mixed)}
        getattr(strategies, registry_name).register(
            STRATEGY,
            _derive("SingleNPUSIMStrategy", _Strategy, base, **plugin),
            description="One simulated device of torch_npusim",
        )


def _derive(name: str, own: type, base: type, **attributes: Any) -> type:
    """Returns class `name`: what `own` says, over Lightning's `base`."""
    return type(name, (own, base), {"__doc__": own.__doc__, "__module__": __name__, **attributes})


class _Accelerator:
    """Lightning's questions to a kind of device; every answer comes from torch.npusim."""

    def setup_device(self, device: torch.device) -> None:
        """Makes `device` current.

        Raises:
            ValueError: If the strategy trains elsewhere, as Lightning's own default does.
        """
        if not is_npusim(device):
            raise ValueError(
                f"the accelerator is 'npusim', but the strategy trains on '{device}': Lightning's "
                f"own strategies put unknown accelerators on CPU. Pass strategy={STRATEGY!r}."
            )
        _device.set_device(device)

    def teardown(self) -> None:
        """Gives cached memory back, as Lightning does for CUDA."""
        memory.empty_cache()

    def get_device_stats(self, device: torch.device | str | int | None) -> dict[str, Any]:
        """Returns torch.npusim.memory_stats(device), for DeviceStatsMonitor."""
        return dict(memory.memory_stats(device))

    @staticmethod
    def parse_devices(devices: int | str | list[int]) -> list[int]:
        """Returns the indices that `Trainer(devices=...)` names.

        Args:
            devices: A number of devices (-1: all), indices, or either as text ("2", "0,1", "1,").

        Raises:
            ValueError: For anything else, or an index that there is no device for.
        """
        count = _device.device_count()
        try:
            indices = _indices(devices, count)
        except (TypeError, ValueError):
            raise ValueError(
                f"devices={devices!r}: expected a number of npusim devices, -1 for all, or a list "
                f"of indices"
            ) from None
        wrong = [index for index in indices if not 0 <= index < count]
        if wrong or not indices or len(set(indices)) != len(indices):
            raise ValueError(
                f"devices={devices!r}: there are {count} npusim devices, numbered from 0; set "
                f"NPUSIM_DEVICE_COUNT for more"
            )
        return indices

    @staticmethod
    def get_parallel_devices(devices: list[int]) -> list[torch.device]:
        """Returns the devices with the indices `devices`.

        Raises:
            ValueError: For more than one. Lightning would start a process for each; that works only
                under the CUDA alias.
        """
        if len(devices) > 1:
            raise ValueError(
                f"devices={devices}: accelerator='npusim' trains in one process; choose one "
                f"device, for example devices=[{devices[0]}], or accelerator='gpu' under "
                f"NPUSIM_AS_CUDA=1"
            )
        return [torch.device("npusim", index) for index in devices]

    @staticmethod
    def auto_device_count() -> int:
        """Returns 1, for `devices="auto"`: see get_parallel_devices()."""
        return 1

    @staticmethod
    def is_available() -> bool:
        """Returns whether there is a device."""
        return _device.is_available()

    @staticmethod
    def name() -> str:
        """Returns the name of the accelerator."""
        return ACCELERATOR


def _indices(devices: int | str | list[int], count: int) -> list[int]:
    if isinstance(devices, str):
        if "," in devices:
            return [int(part) for part in devices.split(",") if part.strip()]
        return _indices(int(devices), count)
    if isinstance(devices, int):
        return list(range(count if devices == -1 else devices))
    return [int(index) for index in devices]


class _Strategy:
    """Trains in one process on one npusim device."""

    _root_device: torch.device  # what Lightning's SingleDeviceStrategy trains on

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"device": torch.device("npusim", 0), **kwargs})

    @property
    def parallel_devices(self) -> list[torch.device]:
        """Returns the device, once the accelerator has chosen it: Lightning fills this in."""
        return []

    @parallel_devices.setter
    def parallel_devices(self, devices: list[torch.device]) -> None:
        if len(devices) != 1 or not is_npusim(devices[0]):
            raise ValueError(
                f"strategy {STRATEGY!r} trains on one npusim device, but the accelerator chose "
                f"{[str(device) for device in devices]}. Pass accelerator={ACCELERATOR!r} too."
            )
        self._root_device = devices[0]


def _precision_property(inherited: Any, mixed_precision: Any) -> property:
    """Returns the strategy's property for the precision plugin, with the default for npusim.

    Lightning makes `mixed_precision` for "cuda" where it does not know the accelerator. A plugin
    that names another device, or is of another class, is taken as it is.
    """

    def assign(strategy: Any, plugin: Any) -> None:
        if type(plugin) is mixed_precision and plugin.device == "cuda":
            plugin = mixed_precision(plugin.precision, "npusim")
        inherited.fset(strategy, plugin)

    return property(inherited.fget, assign, doc=inherited.__doc__)
