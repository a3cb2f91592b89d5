# SPDX-License-Identifier: BSD-3-Clause
"""Writes docs/reference/patches.md from the table of patches: `tools/pages/patches.py`."""

import ast
from pathlib import Path

from torch_npusim.patches import PATCHES, Patch

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/reference/patches.md"
HEAD = """# Changes of torch by this package

<!-- from torch_npusim/patches/table.py, by tools/pages/patches.py -->

torch has no hook for an out-of-tree device at these places. Each change is a row of one table, with
a test that fails when torch no longer needs it. `NPUSIM_AUTOLOAD=0` and no import of `torch_npusim`
leave torch as it is. Three rows change safetensors, and one transformers. The
[CUDA alias](../use/cuda_alias.md) has a table of its own, off by default.

| in torch | reason | upstream | ends when | applied | torch |
|---|---|---|---|---|---|
"""


def reason(patch: Patch) -> str:
    """Returns the first sentence of the body's docstring."""
    module, _, function = patch.body.partition(":")
    path = ROOT / "torch_npusim" / f"{module.replace('.', '/')}.py"
    (node,) = (
        node
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name == function
    )
    text = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
    return text.rstrip(".").replace("|", "\\|")


def page() -> str:
    """Returns the page."""
    rows = [
        f"| `{patch.target}` | {reason(patch)} | {patch.upstream} | {patch.ends} | "
        f"{f'after `{patch.after}`' if patch.after else 'with the device'} | "
        f"{patch.versions or 'all'} |"
        for patch in PATCHES
    ]
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
