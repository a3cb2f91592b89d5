# SPDX-License-Identifier: BSD-3-Clause
"""Importing this module makes code that says "cuda" run on npusim, without a change to it.

    import torch_npusim.as_cuda
    model.cuda(); torch.zeros(3, device="cuda:1"); torch.cuda.memory_allocated()

disable() takes it back, and LIMITS lists what cannot be aliased. To have the functions without
the effect of the import, import torch_npusim.cuda_alias.
"""

from torch_npusim.cuda_alias import LIMITS, disable, enable, is_enabled, scope

__all__ = ["LIMITS", "disable", "enable", "is_enabled", "scope"]

enable()
