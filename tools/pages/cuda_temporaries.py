# SPDX-License-Identifier: BSD-3-Clause
"""Writes docs/reference/cuda_temporaries.md: `tools/pages/cuda_temporaries.py`."""

from pathlib import Path

from torch_npusim import _C

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/cuda_temporaries.md"
HEAD = """# CUDA's temporaries

<!-- from csrc/routes/cuda_temporaries.cpp, by tools/pages/cuda_temporaries.py -->

A [dry run](../use/dry_runs.md) with `temporaries="cuda"` allocates these beside results: sizes of
torch 2.13, by its sources or by reports about them. Three buffers of reductions were compared with
a snapshot of an H100 (torch 2.7). `csrc/aten/cuda_attention.cpp` has those of attention.

| operators | temporaries | when | source |
|---|---|---|---|
"""


def page() -> str:
    """Returns the page."""
    operators: dict[tuple[str, str, str], list[str]] = {}
    for op, what, source, condition in _C.cuda_temporaries():
        operators.setdefault((what, condition, source), []).append(f"`{op.removeprefix('aten::')}`")
    rows = [
        f"| {', '.join(names)} | {what} | {condition} | {source} |"
        for (what, condition, source), names in operators.items()
    ]
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
