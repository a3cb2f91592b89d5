# SPDX-License-Identifier: BSD-3-Clause
"""A PrivateUse1 backend of the smallest size that is of any use: `import torch_minimal`."""

import torch

from torch_minimal import _C, device_module

torch.utils.rename_privateuse1_backend("minimal")
torch._register_device_module("minimal", device_module)
torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)


def fallback_counts() -> dict[str, int]:
    """Calls that were copied to the CPU and back, by overload (`aten::mul.out`)."""
    return _C.fallback_counts()
