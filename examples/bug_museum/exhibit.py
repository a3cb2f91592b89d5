# SPDX-License-Identifier: BSD-3-Clause
"""An exhibit: one file in exhibits/ with a wrong and a fixed variant of a small program.

The first line of the file's docstring is its title; "Defect:", "Passes on the CPU:" and "Kind:"
follow. Both variants take the name of a device. Constants say what the harness has to do:

    THEME             what kind of bug it is (required)
    CHECK             "raises" (default): the variant is the whole program. "sync", "leak", "peak":
                      it returns a function, one use or step, which the harness watches
    PEAK_BYTES        for "peak": the most that one use may need beyond what is alive already
    DEVICE_INDEX      which device of the accelerator; default: no index
    DEVICE_MEMORY     limit of the device's memory, bytes
    POISON            mode of torch_npusim.sim.poison
    STRICT_ALIGNMENT  mode of torch_npusim.sim.alignment
    MISSED            why npusim does not catch the wrong variant

The files in parallel/ are programs for two ranks; both variants run on each, with torch.distributed
initialized. Their docstring says "On CPU with gloo:" what happens there, and they have

    CHECK             "raises"; "collectives": the function is a step, and takes up to MOST of them;
                      "held": it builds something, which holds up to MOST bytes of a device
    BACKEND           of torch.distributed on npusim; default: gloo for the host, simccl for devices
"""

import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "exhibits"
PARALLEL = FOLDER.parent / "parallel"
VARIANTS = ("wrong", "fixed")

_DOCSTRING = re.compile(
    r"(?P<title>[^\n]+\.)\n\nDefect: (?P<what>.+?)\n"
    r"(?:Passes on the CPU|On CPU with gloo): (?P<why>.+?)\n"
    r"Kind: (?P<link>https://github\.com/[\w.-]+/[\w.-]+/(?:issues|pull)/\d+)\n",
    re.DOTALL,
)


@dataclass(frozen=True)
class Exhibit:
    """A description of a file; the fields are the constants above and parts of its docstring.

    Attributes:
        name: Name of the file.
        variants: The functions `wrong` and `fixed`.
    """

    name: str
    title: str
    what: str
    why: str
    link: str
    variants: dict[str, Callable[[str], Callable[[], object] | None]]
    theme: str
    check: str = "raises"
    peak_bytes: int = 0
    device_index: int | None = None
    device_memory: int | None = None
    poison: str = "off"
    strict_alignment: str = "off"
    missed: str = ""
    most: int = 0
    backend: str = "cpu:gloo,npusim:simccl"


def names(folder: Path = FOLDER) -> list[str]:
    """Returns the names of all exhibits, sorted."""
    return sorted(path.stem for path in folder.glob("*.py"))


def load(name: str, folder: Path = FOLDER) -> Exhibit:
    """Runs the file of an exhibit anew, so that nothing is left of an earlier run.

    Raises:
        ValueError: If there is no such file, or its docstring or constants are not as above.
    """
    path = folder / f"{name}.py"
    if not path.exists():
        raise ValueError(f"no exhibit {name!r}; there are {', '.join(names())}")
    spec = importlib.util.spec_from_file_location(f"exhibit_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    said = _DOCSTRING.fullmatch(module.__doc__ or "")
    if said is None:
        raise ValueError(f"{path}: the docstring needs a title, What, Passes on the CPU and Kind")
    constants: dict[str, Any] = {
        field: getattr(module, field.upper())
        for field in Exhibit.__dataclass_fields__
        if hasattr(module, field.upper())
    }
    if "theme" not in constants:
        raise ValueError(f"{path}: THEME is missing")
    variants = {variant: getattr(module, variant) for variant in VARIANTS}
    fields: dict[str, Any] = said.groupdict() | constants
    return Exhibit(name=name, variants=variants, **fields)
