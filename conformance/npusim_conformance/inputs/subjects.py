# SPDX-License-Identifier: BSD-3-Clause
"""The subjects of properties: operators, modules, optimizers and so on, by kind and name."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from npusim_conformance.inputs import torch_testing


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
    databases = {
        "module": torch_testing.modules,
        "optim": torch_testing.optimizers,
        "foreach": torch_testing.foreach_operators,
        "custom": torch_testing.custom_operators,
    }
    found = databases[kind]() if kind in databases else {}
    return {name: Subject(kind, name, kind, info) for name, info in found.items()}
