# SPDX-License-Identifier: BSD-3-Clause
"""All changes of torch and safetensors by this package: one table, one way to apply and undo.

| module | content |
|---|---|
| table.py | the rows: target, body, upstream issue, condition of the end, test, versions of torch |
| eager.py, groups.py, sharding.py, tracing.py, flex_attention.py, dynamo.py, inductor.py | bodies |
| safetensors.py | the same, of safetensors |
| names.py | private names of torch that compiled code rests on |

Rows are applied when the device is registered, or after the import of the module that they name:
so no row imports the compiler. The CUDA alias has a table of its own (`cuda_alias/`) and the same
`Changes`. A body is a function of the original; its docstring states the reason.

Code enters if it replaces a function of torch or safetensors.
"""

from torch_npusim._changes import (
    MISSING,
    Changes,
    Patch,
    is_version,
    original,
    undone,
)
from torch_npusim.patches.table import PATCHES

__all__ = [
    "MISSING",
    "PATCHES",
    "Changes",
    "Patch",
    "apply",
    "is_version",
    "original",
    "undone",
]


def apply() -> None:
    """Applies the rows that this torch needs; called once, when the device is registered."""
    for patch in PATCHES:
        if patch.serves():
            patch.schedule()
