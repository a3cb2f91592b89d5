# SPDX-License-Identifier: BSD-3-Clause
"""`torch.minimal`: what torch looks up in a backend's device module, and no more."""

import torch

from torch_minimal import _C


def is_available():
    return True


def is_initialized():
    return True


def device_count():
    return _C.device_count()


def current_device():
    return _C.current_device()


def set_device(device):
    _C.set_device(_index(device))


class device:  # torch.load looks it up by this name
    """Makes a device the current one for a block."""

    def __init__(self, device):
        self.index = _index(device)

    def __enter__(self):
        self.before = current_device()
        _C.set_device(self.index)

    def __exit__(self, *_):
        _C.set_device(self.before)


def synchronize(device=None):
    pass


def get_amp_supported_dtype():
    return [torch.float16, torch.bfloat16]


def _is_in_bad_fork():
    return False


# Random operators come through the fallback and so draw from the CPU's generator. torch.manual_seed
# seeds that one itself before it calls manual_seed_all.
def manual_seed_all(seed):
    pass


def manual_seed(seed):
    torch.default_generator.manual_seed(seed)


def get_rng_state(device=None):
    return torch.default_generator.get_state()


def set_rng_state(state, device=None):
    torch.default_generator.set_state(state)


def _index(device):
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return current_device() if index is None else index
