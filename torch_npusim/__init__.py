# SPDX-License-Identifier: BSD-3-Clause
"""A simulated accelerator for PyTorch: importing this package makes the device "npusim" exist.

    import torch, torch_npusim
    x = torch.ones(3, device="npusim")

The steps of the registration stand here in order, and each may happen once per process.
`torch.npusim` mirrors `torch.cuda`; what only a simulator can do is in `torch_npusim.sim`.
"""

import atexit
import sys

import torch
from torch.utils import backend_registration

from torch_npusim import _preconditions

__all__ = ["__version__"]
__version__ = "0.1.0"


def _register() -> None:
    # 1. Say in one sentence why it cannot work, before anything is half registered.
    _preconditions.check()

    # 2. Allocators, guard, hooks and operators register themselves as the library loads.
    from torch_npusim import _C

    # 3. The name, and the module that core looks up as torch.npusim.
    if torch._C._get_privateuse1_backend_name() != "npusim":
        backend_registration.rename_privateuse1_backend("npusim")
    from torch_npusim import npusim

    torch._register_device_module("npusim", npusim)  # type: ignore[no-untyped-call]
    for name in [name for name in sys.modules if name.startswith("torch_npusim.npusim.")]:
        # `import torch.npusim.memory` must find this module, not run its file again.
        sys.modules[name.replace("torch_npusim.", "torch.", 1)] = sys.modules[name]

    # 4. Tensor.npusim(), Tensor.is_npusim, Module.npusim() and their like.
    backend_registration.generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True
    )

    # 5. What 2.13 leaves no hook for.
    from torch_npusim import _patches

    _patches.apply()

    # 6. No autograd thread may be alive when the interpreter goes.
    atexit.register(_C.drain_engine_threads)


if not hasattr(torch, "npusim"):  # also true when the package is reloaded
    _register()

if _preconditions.alias_wanted():
    import torch_npusim.as_cuda  # noqa: F401
