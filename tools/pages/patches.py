# SPDX-License-Identifier: BSD-3-Clause
"""The table of docs/reference/patches.md, which the site makes when it is built."""

import ast
from collections.abc import Iterator
from pathlib import Path

from torch_npusim.patches import PATCHES, Patch

ROOT = Path(__file__).resolve().parents[2]


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


def table() -> Iterator[str]:
    """Yields a row for each patch."""
    yield "| in torch | reason | upstream | ends when | applied | torch |"
    yield "|---|---|---|---|---|---|"
    for patch in PATCHES:
        applied = f"after `{patch.after}`" if patch.after else "with the device"
        cells = [f"`{patch.target}`", reason(patch), patch.upstream, patch.ends, applied]
        yield f"| {' | '.join(cells)} | {patch.versions or 'all'} |"
