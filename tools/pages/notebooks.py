# SPDX-License-Identifier: BSD-3-Clause
"""Writes the pages of docs/course/ that have cells as notebooks: `make notebooks`.

    notebooks.py build/notebooks

myst-nb reads a page, as it does for the site. Links lead to the pages of this checkout.
"""

import os
import re
import sys
from pathlib import Path
from typing import Any

import nbformat
from myst_nb.core.read import read_myst_markdown_notebook

COURSE = Path(__file__).resolve().parents[2] / "docs" / "course"
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)")


def notebook(page: Path, folder: Path) -> Any:
    """Returns a page as a notebook, whose relative links are right in `folder`."""
    made = read_myst_markdown_notebook(page.read_text())
    made.metadata.pop("file_format", None)
    lessons = {path.name for path in pages()}

    def moved(match: re.Match[str]) -> str:
        if match[1] in lessons:
            return f"]({Path(match[1]).stem}.ipynb"
        return f"]({os.path.relpath(page.parent / match[1], folder)}"

    for number, cell in enumerate(made.cells):
        cell["id"] = f"cell-{number}"  # the same in every run
        if cell.cell_type == "markdown":
            cell.source = LINK.sub(moved, cell.source)
    nbformat.validate(made)
    return made


def pages() -> list[Path]:
    """Returns the pages that have cells."""
    return [path for path in sorted(COURSE.glob("*.md")) if "\n```{code-cell}" in path.read_text()]


def main() -> None:
    """Writes a notebook per page."""
    folder = Path(sys.argv[1]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for page in pages():
        nbformat.write(notebook(page, folder), folder / f"{page.stem}.ipynb")
        print(folder / f"{page.stem}.ipynb")


if __name__ == "__main__":
    main()
