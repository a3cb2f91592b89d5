# SPDX-License-Identifier: BSD-3-Clause
"""How reports write sizes and tables. Called by memory_summary() and the `npusim` command."""

from collections.abc import Sequence


def format_bytes(count: int) -> str:
    """Returns a size with a binary unit, for example "1.50 GiB"."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{count} B" if unit == "B" else f"{size:.2f} {unit}"
        size /= 1024
    return f"{size:.2f} TiB"


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns lines with the columns aligned."""
    table = [list(header), *map(list, rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    return [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]
