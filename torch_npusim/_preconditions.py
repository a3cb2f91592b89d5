# SPDX-License-Identifier: BSD-3-Clause
"""Whether this process can hold the npusim device at all. Loads nothing of the package.

Called first by `torch_npusim`, and by `npusim doctor` for its report.
"""

import os

import torch

TORCH_NEEDED = "2.13"

# The name core gives the PrivateUse1 device until a package renames it.
UNNAMED = "privateuseone"


def check() -> None:
    """Raises ImportError, in one sentence with the remedy, if the device cannot be registered."""
    problem = torch_problem() or privateuse1_problem() or alias_problem()
    if problem:
        raise ImportError(problem)


def torch_problem() -> str | None:
    """Returns why this torch does not fit the compiled extension, or None."""
    version = str(torch.__version__)
    if version.startswith(f"{TORCH_NEEDED}."):
        return None
    return (
        f"torch_npusim was compiled for torch {TORCH_NEEDED}.x, but torch {version} is running; "
        f"install torch {TORCH_NEEDED}, or build torch_npusim again against this torch."
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
