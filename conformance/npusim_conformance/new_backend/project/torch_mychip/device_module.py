# SPDX-License-Identifier: BSD-3-Clause
"""`torch.mychip`: what torch and its users look up in the module of a device.

Memory, streams and events are torch.accelerator's: the hooks in C++ serve both.
"""

import contextlib

import torch
from torch import accelerator

from torch_mychip import _C

Event = torch.Event
Stream = torch.Stream
current_stream = accelerator.current_stream
empty_cache = accelerator.empty_cache
max_memory_allocated = accelerator.max_memory_allocated
max_memory_reserved = accelerator.max_memory_reserved
mem_get_info = accelerator.get_memory_info
memory_allocated = accelerator.memory_allocated
memory_reserved = accelerator.memory_reserved
memory_stats = accelerator.memory_stats
reset_accumulated_memory_stats = accelerator.reset_accumulated_memory_stats
reset_peak_memory_stats = accelerator.reset_peak_memory_stats
set_stream = accelerator.set_stream
synchronize = accelerator.synchronize


def is_available():
    """Whether there is a device."""
    return device_count() > 0


def is_initialized():
    """The driver needs no initialization."""
    return True


def device_count():
    """How many devices there are."""
    return _C.device_count()


def current_device():
    """The index of this thread's current device."""
    return _C.current_device()


def set_device(device):
    """Makes a device the current one of this thread."""
    _C.set_device(_index(device))


class device:
    """Makes a device the current one for a block."""

    def __init__(self, device):
        self.index = _index(device)

    def __enter__(self):
        self.before = current_device()
        _C.set_device(self.index)

    def __exit__(self, *_):
        _C.set_device(self.before)


def get_device_name(device=None):
    """The name of a device, as its driver has it."""
    return _C.device_name(_index(device))


def default_stream(device=None):
    """The stream that a thread begins with."""
    kind = current_stream().device_type
    return Stream(stream_id=0, device_index=_index(device), device_type=kind)


def stream(stream):
    """Makes a stream, and its device, the current one for a block; None changes nothing."""
    return contextlib.nullcontext() if stream is None else stream


def manual_seed(seed):
    """Seeds the generator of the current device."""
    _C.default_generator(current_device()).manual_seed(int(seed))


def manual_seed_all(seed):
    """Seeds the generators of all devices; torch.manual_seed() calls it."""
    for index in range(device_count()):
        _C.default_generator(index).manual_seed(int(seed))


def seed():
    """Seeds the generator of the current device with a number that nobody knows."""
    _C.default_generator(current_device()).seed()


def initial_seed():
    """The seed of the current device's generator."""
    return _C.default_generator(current_device()).initial_seed()


def get_rng_state(device=None):
    """The state of a device's generator, as a tensor of bytes."""
    return _C.default_generator(_index(device)).get_state()


def set_rng_state(state, device=None):
    """Sets what get_rng_state() gave."""
    _C.default_generator(_index(device)).set_state(state)


def get_rng_state_all():
    """The states of all devices' generators."""
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state_all(states):
    """Sets what get_rng_state_all() gave."""
    for index, state in enumerate(states):
        set_rng_state(state, index)


def get_amp_supported_dtype():
    """Dtypes that autocast takes on this device."""
    return [torch.float16, torch.bfloat16]


def _is_in_bad_fork():
    """Whether this is a forked child of a process that used the device; it may not use it."""
    return _C.is_in_bad_fork()


def _index(device):
    if device is None:
        return current_device()
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return current_device() if index is None else index
