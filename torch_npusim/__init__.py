# SPDX-License-Identifier: BSD-3-Clause
"""A simulated accelerator for PyTorch: importing this package makes the device "npusim" exist.

    import torch, torch_npusim
    x = torch.ones(3, device="npusim")

The steps of the registration stand here in order, and each may happen once per process.
`torch.npusim` mirrors `torch.cuda`; what only a simulator can do is in `torch_npusim.sim`.
"""

import atexit
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch._functorch._aot_autograd.utils import register_graphsafe_rng_device_type
from torch.utils import backend_registration

from torch_npusim import _preconditions
from torch_npusim_common.loading import AFTER_LOADING

if TYPE_CHECKING:
    from torch_npusim.fit.estimate import estimate
    from torch_npusim.inductor.compile_report import compile_report

__all__ = ["__version__", "compile_report", "estimate"]
__version__ = "0.1.0"


def _register() -> None:
    # 0. The sanitizer's dispatch mode asks CUDA at each operator.
    sanitized = _preconditions.alias_wanted() and _preconditions.take_over_sanitizer()

    # 1. Say in one sentence why it cannot work, before anything is half registered.
    _preconditions.check()

    # 2. Allocators, guard, hooks and operators register themselves as the library loads.
    from torch_npusim import _C
    from torch_npusim.sim import specs

    specs.apply(next(k["value"] for k in _C.knobs() if k["name"] == "NPUSIM_SPEC"))

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

    # 5. Changes of torch where it leaves no hook.
    from torch_npusim import patches

    patches.apply()

    # 6. Tensors in several processes, and between them.
    from torch_npusim import _backends, _sharing

    _sharing.register()
    _backends.register()

    # 7. A graph that draws again what a checkpoint drew does so by states that generators share.
    register_graphsafe_rng_device_type("npusim")

    # 8. torch.compile, once Dynamo and Inductor are imported.
    from torch_npusim import inductor

    inductor.register()

    # 9. NPUSIM_RACES, NPUSIM_DEVICE_ASSERT, NPUSIM_RULES and NPUSIM_DRY_RUN.
    from torch_npusim.sim import races, rules

    knobs = {knob["name"]: knob["value"] for knob in _C.knobs()}
    races.set_race_detection("error" if sanitized else knobs["NPUSIM_RACES"])
    _C.set_device_assert(knobs["NPUSIM_DEVICE_ASSERT"])
    rules.set_rules(knobs["NPUSIM_RULES"])

    if knobs["NPUSIM_DRY_RUN"] == "1":
        from torch_npusim import _first_use
        from torch_npusim.sim import dry

        _first_use.at_first_use(dry.begin)

    # 10. Variables that were meant for this package and are none of it.
    from torch_npusim import _environment

    _environment.warn_of_unknown_variables()

    # 11. Frameworks that would not see the device.
    from torch_npusim import _notices

    _notices.listen()

    # 12. The end of the text of an out-of-memory error.
    _C.set_out_of_memory_adviser(_advice_on)

    # 13. No autograd thread may be alive when the interpreter goes.
    atexit.register(_C.drain_engine_threads)


def _advice_on(oom: dict[str, Any], device: int) -> str:
    from torch_npusim._advice import advice_on  # needed by a program that fails alone

    return advice_on(oom, device)


def __getattr__(name: str) -> Any:
    """Imports what takes long when it is asked for."""
    if name == "compile_report":
        from torch_npusim.inductor.compile_report import compile_report

        return compile_report
    if name == "estimate":
        from torch_npusim.fit.estimate import estimate

        return estimate
    raise AttributeError(f"module 'torch_npusim' has no attribute {name!r}")


if not hasattr(torch, "npusim"):  # also true when the package is reloaded
    _register()

if _preconditions.alias_wanted():
    import torch_npusim.as_cuda  # noqa: F401

for _tell in AFTER_LOADING:
    _tell()
