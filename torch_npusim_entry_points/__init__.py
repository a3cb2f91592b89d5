# SPDX-License-Identifier: BSD-3-Clause
"""The entry point of `import torch` (group "torch.backends"): decides whether to load npusim.

A package of its own, because importing any module of torch_npusim registers the device, and this
must be able to decide against it. It is a guest in every `import torch` of the environment: it
steps back silently for others, costs next to nothing then, and never raises.

NPUSIM_AUTOLOAD: "auto" as described, "1" always loads, "0" never. NPUSIM_AS_CUDA=1 loads too: the
program says "cuda" and means npusim, and a real device then is a reason to warn, not to step back.
"""

import os
import sys

from torch_npusim_common.loading import other_backends, report


def autoload() -> None:
    """Imports torch_npusim unless that could disturb another device; a failure is one warning."""
    if "torch_npusim" in sys.modules:
        return  # `import torch_npusim` came first, and its `import torch` has led here
    try:
        if _wanted():
            import torch_npusim

            if torch_npusim.__file__ is None:  # a namespace package: nothing was run
                raise ImportError(_hidden_by(next(iter(torch_npusim.__path__))))
    except Exception as problem:
        reason = str(problem).partition("\n")[0]  # without the C++ stack
        report(f"torch_npusim was not loaded: {reason}")


def _hidden_by(folder: str) -> str:
    return (
        f"the folder {folder} hides the package, which is installed from a checkout. "
        "Rename that folder, or start the program elsewhere"
    )


def _wanted() -> bool:
    choice = os.environ.get("NPUSIM_AUTOLOAD", "")
    if choice in ("0", "1"):
        return choice == "1"
    if os.environ.get("NPUSIM_AS_CUDA") == "1":
        return True
    return not (_privateuse1_is_taken() or _accelerator_is_present() or other_backends())


def _privateuse1_is_taken() -> bool:
    import torch

    return bool(torch._C._get_privateuse1_backend_name() != "privateuseone")


def _accelerator_is_present() -> bool:
    import torch

    return torch.accelerator.is_available()
