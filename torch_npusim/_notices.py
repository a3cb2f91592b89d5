# SPDX-License-Identifier: BSD-3-Clause
"""One line for those who import a framework that would train on the CPU without a word.

accelerate, transformers' Trainer and Lightning choose a device from a list of names that npusim is
not on. The line says what to write; it is not said where that was written, or under the CUDA alias,
whose name is on the list.
"""

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

from torch_npusim import _names
from torch_npusim_common.loading import report

_ACCELERATE = (
    "accelerate (and transformers' Trainer) will use the CPU, although npusim is there: set "
    "ACCELERATE_TORCH_DEVICE=npusim or call torch_npusim.integrations.accelerate.enable(), or run "
    "with NPUSIM_AS_CUDA=1. ACCELERATE_USE_CPU=1 means the CPU on purpose"
)
_LIGHTNING = (
    "Lightning's accelerator='auto' will use the CPU, although npusim is there: call "
    "torch_npusim.integrations.lightning.register() and pass accelerator='npusim', "
    "strategy='single_npusim', or run with NPUSIM_AS_CUDA=1"
)
# Module -> what to say, the variables and the modules that make it needless.
_NOTICES = {
    "accelerate.state": (
        _ACCELERATE,
        ("ACCELERATE_TORCH_DEVICE", "ACCELERATE_USE_CPU"),
        "torch_npusim.integrations.accelerate",
    ),
    "lightning.pytorch.trainer": (_LIGHTNING, (), "torch_npusim.integrations.lightning"),
    "pytorch_lightning.trainer": (_LIGHTNING, (), "torch_npusim.integrations.lightning"),
    "lightning.fabric.fabric": (_LIGHTNING, (), "torch_npusim.integrations.lightning"),
}


class _Finder(MetaPathFinder):
    """Finds nothing: it hears what is imported for the first time."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        """Says the line of a framework, once."""
        if fullname not in _NOTICES:
            return
        text, variables, module = _NOTICES.pop(fullname)
        known = module in sys.modules or any(os.environ.get(name) for name in variables)
        if not known and _names.device_type() != "cuda":
            report(text)
            for other in [name for name, notice in _NOTICES.items() if notice[0] == text]:
                del _NOTICES[other]  # once is enough


def listen() -> None:
    """Says the line when a framework is imported from here on."""
    sys.meta_path.insert(0, _Finder())
