# SPDX-License-Identifier: BSD-3-Clause
"""Random numbers: one Philox generator per device, whose state is a seed and an offset.

Generators live on the host, so seeding never initialises the simulator. torch.manual_seed(),
torch.random.fork_rng() and torch.utils.checkpoint call these functions.

    >>> torch.npusim.manual_seed(7)
    >>> first = torch.rand(3, device="npusim")
    >>> torch.npusim.manual_seed(7)
    >>> torch.equal(first, torch.rand(3, device="npusim"))
    True
"""

from collections.abc import Iterable

import torch

from torch_npusim import _C
from torch_npusim._first_use import _is_in_bad_fork, _lazy_init
from torch_npusim.npusim._device import device_count
from torch_npusim.npusim._utils import DeviceLike, _get_device_index

__all__ = [
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
]


def _get_generator(device: DeviceLike) -> torch.Generator:
    """Returns the default generator of `device`; None: of the current device."""
    if _is_in_bad_fork():
        _lazy_init()  # says why not, and the remedy
    return _C.default_generator(_get_device_index(device, optional=True))


def _default_generators() -> tuple[torch.Generator, ...]:
    return tuple(_get_generator(index) for index in range(device_count()))


def get_rng_state(device: DeviceLike = "npusim") -> torch.Tensor:
    """Returns the state of a device's generator.

    Args:
        device: Default: the current device.

    Returns:
        A uint8 tensor of shape (16,) on CPU, with seed (u64) and offset (i64), little endian.
    """
    return _get_generator(device).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """Returns the states of all devices' generators, by device."""
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state(new_state: torch.Tensor, device: DeviceLike = "npusim") -> None:
    """Sets the state of a device's generator to one that get_rng_state() returned."""
    _get_generator(device).set_state(new_state)


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Sets the states of the first devices' generators, in order."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def manual_seed(seed: int) -> None:
    """Seeds the current device's generator; does nothing where no device is available."""
    seed = int(seed)
    if device_count() > 0:
        _get_generator(None).manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Seeds the generators of all devices with the same number."""
    seed = int(seed)
    for generator in _default_generators():
        generator.manual_seed(seed)


def seed() -> None:
    """Seeds the current device's generator with a number that differs from run to run."""
    if device_count() > 0:
        _get_generator(None).seed()


def seed_all() -> None:
    """Seeds the generators of all devices with one number that differs from run to run."""
    generators = _default_generators()
    if generators:
        manual_seed_all(generators[0].seed())


def initial_seed() -> int:
    """Returns the seed of the current device's generator."""
    return _get_generator(None).initial_seed()


def _set_rng_state_offset(offset: int, device: DeviceLike = "npusim") -> None:
    _get_generator(device).set_offset(offset)


def _get_rng_state_offset(device: DeviceLike = "npusim") -> int:
    return int(_get_generator(device).get_offset())
