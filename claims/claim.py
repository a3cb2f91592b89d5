# SPDX-License-Identifier: BSD-3-Clause
"""A claim: a wrong program that npusim must stop, and its mended twin that must run.

A claim is one file, specimens/SUBJECT/NAME.py. Its docstring has a title and three parts:

    Defect:             the mistake
    Passes on the CPU:  the reason why a machine without a device hides it, or what gloo says
    Kind:               an issue or a pull request with the same pattern

`wrong` and `fixed` take the name of a device. Constants say what the runner does:

    HOW               "device" (default): one process; "ranks": two ranks, with torch.distributed
    CHECK             "raises" (default): the function is the whole program. Otherwise it returns a
                      use or step, which the runner watches. On a device: "sync", "leak", "peak";
                      for ranks: "collectives" of a step, "held" bytes of what the function builds
    MOST              the collectives or bytes that "collectives" and "held" allow
    PEAK_BYTES        for "peak": the most that one use may need beyond what is alive already
    DEVICE_INDEX      the index of the device; default: a device without index
    DEVICE_MEMORY     limit of the device's memory, bytes
    POISON            mode of torch_npusim.sim.poison
    STRICT_ALIGNMENT  mode of torch_npusim.sim.alignment
    BACKEND           of torch.distributed on npusim
    MISSED            the reason why npusim does not stop the wrong program

A short claim is a row of lists/SUBJECT.py: a `Brief`, which one run of pytest asks with all others,
as a library that is written for CUDA would be tested (as_tests.py).
"""

import importlib
import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

SPECIMENS = Path(__file__).resolve().parent / "specimens"
LISTS = Path(__file__).resolve().parent / "lists"
VARIANTS = ("wrong", "fixed")

_DOCSTRING = re.compile(
    r"(?P<title>[^\n]+\.)\n\nDefect: (?P<defect>.+?)\nPasses on the CPU: (?P<hidden>.+?)\n"
    r"Kind: (?P<source>https://github\.com/[\w.-]+/[\w.-]+/(?:issues|pull)/\d+)\n",
    re.DOTALL,
)


class Brief(NamedTuple):
    """A short claim: what the report says (a regular expression), and two functions.

    They take a tensor of 4 x 4 ones on the device. `wrong` is None where only a right program is
    claimed to pass.
    """

    says: str
    wrong: Callable[..., object] | None
    fixed: Callable[..., object]


@dataclass(frozen=True)
class Claim:
    """A file of specimens/, with parts of its docstring and its constants; or a row of lists/.

    Attributes:
        id: SUBJECT/NAME, or lists/SUBJECT/NAME.
        variants: The functions `wrong` and `fixed`; `fixed` alone where nothing is wrong.
        says: Of a row of lists/: what the report says.
    """

    id: str
    title: str
    defect: str
    hidden: str
    source: str
    variants: dict[str, Callable[[Any], Any]]
    says: str = ""
    how: str = "device"
    check: str = "raises"
    most: int = 0
    peak_bytes: int = 0
    device_index: int | None = None
    device_memory: int | None = None
    poison: str = "off"
    strict_alignment: str = "off"
    backend: str = "cpu:gloo,npusim:simccl"
    missed: str = ""


def ids(*words: str) -> list[str]:
    """Returns the ids of all claims, sorted, or of those that contain one of the words."""
    paths = SPECIMENS.glob("*/*.py")
    every = sorted(f"{path.parent.name}/{path.stem}" for path in paths)
    for subject in lists():
        every += [f"lists/{subject}/{name}" for name in briefs(subject)]
    return [one for one in every if not words or any(word in one for word in words)]


def lists() -> list[str]:
    """Returns the subjects of short claims, sorted."""
    return sorted(path.stem for path in LISTS.glob("*.py") if path.stem != "device_calls")


def briefs(subject: str) -> dict[str, Brief]:
    """Returns the short claims of a subject by name."""
    found: dict[str, Brief] = importlib.import_module(f"claims.lists.{subject}").CLAIMS
    return found


def load(name: str) -> Claim:
    """Runs the file of a claim anew, so that nothing is left of an earlier run.

    The modules of lists/ are imported once.

    Raises:
        ValueError: If there is no such file, or its docstring or functions are not as above.
    """
    if name.startswith("lists/"):
        _, subject, key = name.split("/")
        brief = briefs(subject)[key]
        both: dict[str, Any] = {"wrong": brief.wrong, "fixed": brief.fixed}
        given: dict[str, Any] = {"variants": {v: call for v, call in both.items() if call}}
        given |= dict.fromkeys(("defect", "hidden", "source"), "")
        return Claim(name, key.replace("_", " "), how="tests", says=brief.says, **given)
    path = SPECIMENS / f"{name}.py"
    if not path.exists():
        raise ValueError(f"no claim {name!r}; there are {', '.join(ids())}")
    spec = importlib.util.spec_from_file_location(f"specimen_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    said = _DOCSTRING.fullmatch(module.__doc__ or "")
    if said is None:
        raise ValueError(f"{path}: the docstring needs a title, Defect, Passes on the CPU and Kind")
    if missing := [variant for variant in VARIANTS if not hasattr(module, variant)]:
        raise ValueError(f"{path}: no function {missing[0]!r}")
    given = {
        field.name: getattr(module, field.name.upper())
        for field in fields(Claim)
        if hasattr(module, field.name.upper())
    }
    variants = {variant: getattr(module, variant) for variant in VARIANTS}
    given |= said.groupdict()
    return Claim(id=name, variants=variants, **given)
