# SPDX-License-Identifier: BSD-3-Clause
"""Lists the differences between two versions of torch that an out-of-tree backend meets.

Each interpreter has one torch installed; neither needs torch_npusim. The private names are those
that the sources of this checkout use, and the headers are those that its C++ includes.

    torch_moves.py OLD_PYTHON NEW_PYTHON [--limit 40]
"""

import argparse
import ast
import hashlib
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MODULES = (
    "torch.accelerator torch.accelerator.memory torch.backends torch.cuda torch.cuda.memory "
    "torch.cuda.graphs torch.utils.backend_registration torch.distributed torch.amp torch.mtia "
    "torch.xpu torch._dynamo.device_interface torch._inductor.codegen.common torch.profiler"
).split()
CLASSES = (
    "torch.Tensor torch.Stream torch.Event torch.Generator torch.UntypedStorage "
    "torch.distributed.Backend torch._C._distributed_c10d.Backend"
).split()
OUR_PYTHON = ("torch_npusim", "torch_npusim_common", "torch_npusim_entry_points", "conformance")
OUR_CXX = ("csrc",)
PRIVATE = re.compile(r"(^|\.)_[a-zA-Z]")


def private_names() -> set[str]:
    """Returns the private names of torch, dotted, that the Python of this checkout mentions."""
    found: set[str] = set()
    for folder in OUR_PYTHON:
        for path in (ROOT / folder).rglob("*.py"):
            if "build" not in path.parts:
                found |= set(_private_names(ast.parse(path.read_text())))
    return found


def _private_names(tree: ast.Module) -> Iterator[str]:
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            for name in node.names:
                aliases[name.asname or name.name] = f"{node.module}.{name.name}"
        elif isinstance(node, ast.Import):
            for name in node.names:
                if name.name.split(".")[0] == "torch":
                    aliases[name.asname or "torch"] = name.name if name.asname else "torch"
    yield from (name for name in aliases.values() if PRIVATE.search(name))
    for node in ast.walk(tree):
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if parts and isinstance(node, ast.Name) and node.id in aliases:
            name = ".".join([aliases[node.id], *reversed(parts)])
            if PRIVATE.search(name) and "__" not in name:
                yield name


def included_headers() -> set[str]:
    """Returns the headers of torch that the C++ of this checkout includes."""
    include = re.compile(r"^#include <((?:ATen|c10|torch|caffe2)/[^>]+)>", re.M)
    return {
        header
        for folder in OUR_CXX
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".h", ".cpp")
        for header in include.findall(path.read_text())
    }


def find(name: str) -> Any:
    """Returns the object of a dotted name; raises LookupError if this torch has none."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        try:
            for part in parts[length:]:
                found = getattr(found, part)
        except AttributeError:
            continue
        return found
    raise LookupError(name)


def shape(value: Any) -> str:
    """Returns what a caller of `value` relies on: its kind and signature."""
    if inspect.isclass(value):
        return "class"
    if callable(value):
        try:
            parameters = inspect.signature(value).parameters.values()
        except (TypeError, ValueError):
            return "function"
        return f"function({', '.join(_without_annotation(p) for p in parameters)})"
    return type(value).__name__


def _without_annotation(parameter: inspect.Parameter) -> str:
    return str(parameter.replace(annotation=inspect.Parameter.empty))


def is_own(name: str, value: Any) -> bool:
    """Returns whether a name of a module of torch is torch's, and not a helper that it imports."""
    home = getattr(value, "__module__", None)
    return (
        not name.startswith("_")
        and not inspect.ismodule(value)
        and str(home or "torch").startswith("torch")
    )


def source(value: Any) -> str:
    """Returns a digest of a function's or class's text; empty where there is none."""
    try:
        return hashlib.sha256(inspect.getsource(value).encode()).hexdigest()[:12]
    except (OSError, TypeError):
        return ""


def facts() -> dict[str, dict[str, str]]:
    """Returns the facts of the torch of this interpreter: topic, name, value."""
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    include = Path(torch.__file__).parent / "include"
    found: dict[str, dict[str, str]] = {"torch": {"version": str(torch.__version__)}}
    found["operators"] = {
        f"{schema.name}.{schema.overload_name}".rstrip("."): str(schema)
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("aten::")
    }
    found["op_db"] = {
        f"{op.name} {op.variant_test_name}".strip(): ", ".join(
            sorted(str(dtype).removeprefix("torch.") for dtype in op.dtypes)
        )
        for op in op_db
    }
    found["public names"] = {}
    for name in (*MODULES, *CLASSES):
        try:
            owner = find(name)
        except LookupError:
            continue
        for attribute in dir(owner):
            try:
                value = getattr(owner, attribute)
            except Exception:  # an attribute that needs an instance, or hardware
                continue
            if is_own(attribute, value):
                found["public names"][f"{name}.{attribute}"] = shape(value)
    found["private names used here"] = {}
    for name in sorted(private_names()):
        try:
            value = find(name)
        except LookupError:
            continue
        if not inspect.ismodule(value):
            found["private names used here"][name] = f"{shape(value)} {source(value)}".strip()
    found["headers used here"] = {
        header: hashlib.sha256((include / header).read_bytes()).hexdigest()[:12]
        for header in sorted(included_headers())
        if (include / header).exists()
    }
    found["allocator constants"] = {}
    for header in ("c10/core/AllocatorConfig.h", "c10/cuda/CUDACachingAllocator.h"):
        if (include / header).exists():
            text = (include / header).read_text()
            for name, value in re.findall(r"constexpr \w+ (k\w+)\s*=\s*([^;]+);", text):
                found["allocator constants"][name] = " ".join(value.split())
            for key in re.findall(r'"([a-z_]{6,})"', text):
                found["allocator constants"][f"key {key}"] = "known"
    return found


def asked(python: str) -> dict[str, dict[str, str]]:
    """Returns facts() of another interpreter."""
    done = subprocess.run(
        [python, __file__, "--facts"],
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        sys.exit(f"error: {python} could not be asked:\n{done.stderr[-2000:]}")
    answer: dict[str, dict[str, str]] = json.loads(done.stdout.splitlines()[-1])
    return answer


def differences(
    old: dict[str, str], new: dict[str, str]
) -> tuple[list[str], list[str], list[tuple[str, str, str]]]:
    """Returns the names that went, the names that came, and (name, before, after) of the others."""
    gone, came = sorted(old.keys() - new.keys()), sorted(new.keys() - old.keys())
    return gone, came, [(n, old[n], new[n]) for n in sorted(old.keys() & new) if old[n] != new[n]]


def main() -> int:
    """Prints the differences, topic by topic, as Markdown; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pythons", nargs="*", metavar="PYTHON")
    parser.add_argument("--limit", type=int, default=40, help="lines per list")
    parser.add_argument("--facts", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.facts:
        print(json.dumps(facts()))
        return 0
    if len(arguments.pythons) != 2:
        parser.error("two interpreters are needed: the one with the old torch, then the other")
    old, new = map(asked, arguments.pythons)
    print(f"# From torch {old['torch']['version']} to {new['torch']['version']}")
    for topic in old:
        gone, came, changed = differences(old[topic], new[topic])
        print(f"\n## {topic}: {len(gone)} gone, {len(came)} new, {len(changed)} changed\n")
        lines = [f"- gone: `{name}`" for name in gone]
        lines += [f"- changed: `{n}`: `{before}` -> `{after}`" for n, before, after in changed]
        lines += [f"- new: `{name}`" for name in came]
        print("\n".join(lines[: arguments.limit]))
        if len(lines) > arguments.limit:
            print(f"- and {len(lines) - arguments.limit} more")
    return 0


if __name__ == "__main__":
    sys.exit(main())
