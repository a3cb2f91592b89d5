# SPDX-License-Identifier: BSD-3-Clause
"""What properties are asked of: operators, modules, optimizers and so on, by kind and name."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from npusim_conformance import torch_testing


@dataclass(frozen=True, eq=False)
class Subject:
    """`info` is torch's own record (OpInfo, ModuleInfo ...); contracts have none."""

    kind: str
    name: str
    family: str
    info: Any = None

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    def excluded(self) -> str:
        """Why no device but CUDA can have it, whatever is asked; empty for nearly all."""
        return "compiles CUDA source" if self.name.startswith(torch_testing.CUDA_SOURCE) else ""

    def dtypes(self, backward: bool = False) -> list[torch.dtype]:
        """Dtypes that the CPU supports, most telling first; empty where dtype means nothing."""
        if self.kind in ("op", "foreach", "custom"):
            return torch_testing.operator_dtypes(self.info, backward)
        if self.kind == "module":
            dtypes = set(self.info.dtypes)
            return [dtype for dtype in torch_testing.DTYPE_ORDER if dtype in dtypes]
        return []


@cache
def subjects(kind: str) -> dict[str, Subject]:
    """All subjects of a kind by name, in the order in which they are best run."""
    if kind == "op":
        operators = torch_testing.operators()
        slow = [name for name in torch_testing.SLOW if name in operators]
        order = slow + [name for name in operators if name not in set(slow)]
        return {
            name: Subject("op", name, torch_testing.family(operators[name]), operators[name])
            for name in order
        }
    if kind == "module":
        modules = torch_testing.modules()
        return {name: Subject("module", name, "module", info) for name, info in modules.items()}
    if kind == "optim":
        optimizers = torch_testing.optimizers()
        return {name: Subject("optim", name, "optim", info) for name, info in optimizers.items()}
    if kind == "foreach":
        foreach = torch_testing.foreach_operators()
        return {name: Subject("foreach", name, "foreach", info) for name, info in foreach.items()}
    if kind == "custom":
        custom = torch_testing.custom_operators()
        return {name: Subject("custom", name, "custom", info) for name, info in custom.items()}
    return {}
