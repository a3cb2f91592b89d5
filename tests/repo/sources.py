# SPDX-License-Identifier: BSD-3-Clause
"""The repository's own source files, without what the build writes."""

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ["backend", "allocator", "lab", "csrc", "torch_npusim", "conformance", "truth", "course"]
DEVICE = "torch_npusim", "torch_npusim_common", "torch_npusim_entry_points"
LAYERS += ["examples", "tests", "claims", "tools", *DEVICE[1:]]
CPP = (".h", ".cpp")
PYTHON = (".py", ".pyi")


def sources(*folders: str, suffixes: tuple[str, ...] = CPP + PYTHON) -> Iterator[Path]:
    """Yields the source files under `folders` (all layers if none are named), sorted."""
    for folder in folders or LAYERS:
        for path in sorted((ROOT / folder).rglob("*")):
            parts = path.relative_to(ROOT).parts
            if path.suffix in suffixes and "build" not in parts and "__pycache__" not in parts:
                yield path


def shown(path: Path, line: int | None = None) -> str:
    """Returns path[:line] relative to the root, as compilers print it."""
    text = str(path.relative_to(ROOT))
    return f"{text}:{line}" if line else text
