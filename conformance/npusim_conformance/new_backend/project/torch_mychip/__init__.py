# SPDX-License-Identifier: BSD-3-Clause
"""mychip as a PyTorch device; `import torch` loads it, by the entry point of this package."""

import torch

from torch_mychip import _C, device_module

torch.utils.rename_privateuse1_backend("mychip")
torch._register_device_module("mychip", device_module)
torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)


def autoload() -> None:
    """The function that `import torch` calls; importing this module has done it all."""


def fallback_counts() -> dict[str, int]:
    """Calls that were copied to the CPU and back so far, by overload (`aten::mul.out`)."""
    return _C.fallback_counts()
