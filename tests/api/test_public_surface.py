# SPDX-License-Identifier: BSD-3-Clause
"""Public names and signatures are those of public_surface.txt, and documented.

NPUSIM_ACCEPT_SURFACE=1 pytest tests/api/test_public_surface.py     writes the file anew
"""

import enum
import importlib
import inspect
import os
from pathlib import Path

import pytest

GOLDEN = Path(__file__).with_name("public_surface.txt")
MODULES = ["torch_npusim", "torch_npusim.npusim"]
MODULES += [
    f"torch_npusim.npusim.{name}" for name in ("amp", "graphs", "memory", "random", "streams")
]
MODULES += [f"torch_npusim.npusim.amp.{name}" for name in ("autocast_mode", "grad_scaler")]
MODULES += ["torch_npusim.sim"]
MODULES += [
    f"torch_npusim.sim.{name}"
    for name in (
        "alignment",
        "clock",
        "dry",
        "fabric",
        "fallback",
        "faults",
        "poison",
        "rules",
        "specs",
        "synchronisation",
    )
]
MODULES += ["torch_npusim.cli", "torch_npusim.cpp_extension", "torch_npusim.cuda_alias"]
MODULES += [
    f"torch_npusim.integrations.{name}" for name in ("accelerate", "lightning", "transformers")
]
MODULES += ["torch_npusim.testing"]
MODULES += [f"torch_npusim.testing.{name}" for name in ("leaks", "ranks")]
MODULES += ["torch_npusim_entry_points"]


def public(module):
    names = getattr(module, "__all__", None)
    if names is None:
        names = [n for n, v in vars(module).items() if inspect.isfunction(v) and n[0] != "_"]
    return [(name, getattr(module, name)) for name in sorted(names)]


def described(name, value):
    if inspect.ismodule(value):
        yield f"{name}: module"
    elif inspect.isclass(value) and not issubclass(value, enum.Enum):
        yield f"class {name}{signature(value)}"
        for member, attribute in sorted(vars(value).items()):
            function = getattr(attribute, "__func__", attribute)
            if inspect.isfunction(function) and member[0] != "_":
                yield f"    {member}{signature(function)}"
            elif isinstance(attribute, property):
                yield f"    {member}: property"
    elif callable(value):
        yield f"{name}{signature(value)}"
    else:
        yield f"{name}: {type(value).__name__}"


def signature(function):
    try:
        return str(inspect.signature(function))
    except (TypeError, ValueError):
        return "(...)"


def surface():
    lines = []
    for name in MODULES:
        module = importlib.import_module(name)
        lines += ["", f"# {name}"]
        for public_name, value in public(module):
            lines += described(public_name, value)
    return "\n".join(lines).strip() + "\n"


def test_surface_is_the_golden_one():
    if os.environ.get("NPUSIM_ACCEPT_SURFACE") == "1":
        GOLDEN.write_text(surface())
    assert surface() == GOLDEN.read_text(), "changed on purpose? See the first lines of this file."


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_is_documented(name):
    undocumented = [
        public_name
        for public_name, value in public(importlib.import_module(name))
        if callable(value) and not (inspect.getdoc(value) or "").strip()
    ]
    assert undocumented == []


def test_classes_that_a_public_function_returns_are_public():
    hidden = []
    for module in map(importlib.import_module, MODULES):
        functions = [value for _, value in public(module) if inspect.isfunction(value)]
        returned = {inspect.signature(function).return_annotation for function in functions}
        own = [c for c in returned if inspect.isclass(c) and c.__module__ == module.__name__]
        hidden += [c for c in own if c.__name__ not in getattr(module, "__all__", vars(module))]
    assert hidden == []
