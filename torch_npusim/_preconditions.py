# SPDX-License-Identifier: BSD-3-Clause
"""Whether this process can hold the npusim device at all. Loads nothing of the package.

Called first by `torch_npusim`, and by `npusim doctor` for its report.
"""

import os
import sys
import sysconfig
from pathlib import Path

import torch
from torch._utils import CallbackRegistry

_PACKAGE = Path(__file__).parent

#: Minor versions of torch with which the whole test suite passes, oldest first.
TORCH_SUPPORTED = ("2.13", "2.14", "2.15")
_COMPILE = "`pip install --force-reinstall --no-deps .` in a checkout or an unpacked archive"

# The name core gives the PrivateUse1 device until a package renames it.
UNNAMED = "privateuseone"


def check() -> None:
    """Raises ImportError, in one sentence with the remedy, if the device cannot be registered."""
    problem = extension_problem() or torch_problem() or privateuse1_problem() or alias_problem()
    if problem:
        raise ImportError(problem)


def torch_problem() -> str | None:
    """Returns why this torch does not fit the compiled extension, or None."""
    version, built_for = str(torch.__version__), torch_built_for()
    if built_for is None or version.startswith(f"{built_for}."):
        return None
    minor = _minor(version)
    order = "newer" if _numbers(minor) > _numbers(built_for) else "older"
    remedy = f"install that torch: `pip install 'torch=={built_for}.*'`"
    if minor in TORCH_SUPPORTED:
        remedy += f"; or take the wheel for this one, {fitting_wheel()}; or compile it: {_COMPILE}"
    else:
        remedy += f"; this torch_npusim can be compiled for torch {', '.join(TORCH_SUPPORTED)}"
    return (
        f"torch_npusim was compiled for torch {built_for}, but torch {version}, which is {order}, "
        f"is running; {remedy}."
    )


def fitting_wheel() -> str:
    """Returns the name of the wheel of torch_npusim for the torch and the Python that run."""
    torch_minor, (major, minor) = _minor(str(torch.__version__)), sys.version_info[:2]
    return f"torch_npusim-*+torch{torch_minor}-cp{major}{minor}-*.whl"


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.split("."))


def torch_built_for() -> str | None:
    """Returns the minor version of torch that the extension was compiled for, if there is one."""
    try:
        return (_PACKAGE / "_C.built_for").read_text().strip()
    except FileNotFoundError:
        return None


def extension_problem() -> str | None:
    """Returns why this interpreter cannot load the compiled extension, or None."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return (
            f"torch_npusim needs a Python with the global interpreter lock, and this one "
            f"({sys.executable}) is a free-threaded build; use "
            f"python{sysconfig.get_python_version()} without the suffix `t`."
        )
    built = sorted(path.name for path in _PACKAGE.glob("_C.*.so"))
    if f"_C{sysconfig.get_config_var('EXT_SUFFIX')}" in built:
        return None
    found = f"only {', '.join(built)} is there" if built else "it is not there"
    return (
        f"torch_npusim's compiled part does not fit Python {sysconfig.get_python_version()} "
        f"({found}); compile it for this interpreter: {_COMPILE}."
    )


def privateuse1_problem() -> str | None:
    """Returns who has torch's one slot for external devices if it is not free, or None."""
    name = privateuse1_owner()
    if name in (None, "npusim") or hasattr(torch, "npusim"):
        return None
    return (
        f"torch_npusim cannot add its device: PrivateUse1, the one slot that torch has for an "
        f"external device, is taken by '{name}' in this process; import only one of the two "
        f"(NPUSIM_AUTOLOAD and TORCH_DEVICE_BACKEND_AUTOLOAD say what `import torch` loads)."
    )


def privateuse1_owner() -> str | None:
    """Returns the device name that holds PrivateUse1, or None while it is free."""
    name: str = torch._C._get_privateuse1_backend_name()
    if name != UNNAMED:
        return name
    # A backend may have registered its hooks without giving itself a name.
    accelerator = torch.accelerator.current_accelerator()
    return UNNAMED if accelerator is not None and accelerator.type == UNNAMED else None


def alias_wanted() -> bool:
    """Returns whether the environment asks for the CUDA alias (torch_npusim.cuda_alias)."""
    return os.environ.get("NPUSIM_AS_CUDA") == "1"


def take_over_sanitizer() -> bool:
    """Returns whether TORCH_CUDA_SANITIZER was on, and ends it: sim.races answers instead."""
    sanitizer = sys.modules.get("torch.cuda._sanitizer")
    if sanitizer is None or not sanitizer.cuda_sanitizer.enabled:
        return False
    sanitizer.cuda_sanitizer.disable()
    for registry in vars(sanitizer.gpu_trace).values():
        if isinstance(registry, CallbackRegistry):
            registry.callback_list.clear()
    return True


def alias_problem() -> str | None:
    """Returns why the CUDA alias that the environment asks for is refused, or None."""
    return real_cuda_problem() if alias_wanted() else None


def real_cuda_problem() -> str | None:
    """Returns what "cuda" already means in this process, or None; asked without the alias."""
    if not torch.cuda.is_available():
        return None
    return (
        f"the CUDA alias of torch_npusim would hide a real device: torch.cuda has "
        f"{torch.cuda.device_count()} here. Make CUDA_VISIBLE_DEVICES empty to simulate instead, "
        f"or leave the alias off (NPUSIM_AS_CUDA=0, no `import torch_npusim.as_cuda`)."
    )
