# SPDX-License-Identifier: BSD-3-Clause
"""`torch.mychip`: what torch and its users look up in the module of a device."""

import struct

import torch

from torch_mychip import _C

_STATE = struct.Struct("=QQ")  # of a generator: seed, offset


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


def synchronize(device=None):
    """Waits until a device has finished everything."""
    _C.synchronize(_index(device))


def mem_get_info(device=None):
    """(free, total) bytes of a device."""
    return _C.memory_info(_index(device))


def memory_allocated(device=None):
    """Bytes of live tensors on a device."""
    return _C.allocated_bytes(_index(device))


def manual_seed(seed):
    """Seeds the generator of the current device."""
    _C.set_generator_state(current_device(), int(seed) % 2**64, 0)


def manual_seed_all(seed):
    """Seeds the generators of all devices; torch.manual_seed() calls it."""
    for index in range(device_count()):
        _C.set_generator_state(index, int(seed) % 2**64, 0)


def initial_seed():
    """The seed of the current device's generator."""
    return _C.generator_state(current_device())[0]


def get_rng_state(device=None):
    """The state of a device's generator, as a tensor of bytes."""
    return torch.tensor(list(_STATE.pack(*_C.generator_state(_index(device)))), dtype=torch.uint8)


def set_rng_state(state, device=None):
    """Sets what get_rng_state() gave."""
    if state.dtype != torch.uint8 or state.numel() != _STATE.size:
        raise ValueError(f"the state of a generator is {_STATE.size} bytes, of torch.uint8")
    _C.set_generator_state(_index(device), *_STATE.unpack(bytes(state.tolist())))


def get_amp_supported_dtype():
    """Dtypes that autocast takes on this device."""
    return [torch.float16, torch.bfloat16]


def _is_in_bad_fork():
    return False


def _index(device):
    if device is None:
        return current_device()
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return current_device() if index is None else index
