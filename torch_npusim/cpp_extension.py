# SPDX-License-Identifier: BSD-3-Clause
"""The needs of a compiled extension to run kernels of its own on npusim; see docs/use/custom_op.md.

`#include <torch_npusim/kernel.h>` is the whole C++ interface. There is no library to link.
"""

from pathlib import Path

__all__ = ["include_paths"]


def include_paths() -> list[str]:
    """Returns the folders to add to those of torch.utils.cpp_extension.include_paths()."""
    return [str(Path(__file__).parent / "include")]
