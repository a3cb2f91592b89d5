# SPDX-License-Identifier: BSD-3-Clause
"""Lists of pages, from the tables of docs/README.md: the toctree of each section, and llms.txt."""

import importlib
import os
import re
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.util.docutils import SphinxDirective

LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)\)")
SUMMARY = (
    "A simulated accelerator for PyTorch: streams, memory, faults and modelled time of a real "
    "device, without hardware."
)


def sections(index: Path) -> dict[str, tuple[str, list[str]]]:
    """Returns {folder: (heading, lines of its table)} of docs/README.md, in its order."""
    found = {}
    for part in re.split(r"^## ", index.read_text(), flags=re.M)[1:]:
        heading, _, text = part.partition("\n")
        rows = [line for line in text.splitlines() if line.startswith("|")]
        folder = LINK.search(text)[2].partition("/")[0]
        found[folder] = (heading, rows)
    return found


class Pages(SphinxDirective):
    """`{pages}` on the first page of a section: the section's table, which is its toctree too."""

    def run(self) -> list[nodes.Node]:
        """Returns the table, and a hidden toctree."""
        index = Path(self.env.srcdir) / "README.md"
        self.env.note_dependency(str(index))
        folder = self.env.docname.partition("/")[0]
        rows = sections(index)[folder][1]

        def here(match: re.Match[str]) -> str:
            target = os.path.relpath(match[2], folder) + "/" * match[2].endswith("/")
            return f"[{Path(match[1]).name}]({target})"

        parsed = self.parse_text_to_nodes("\n".join(LINK.sub(here, row) for row in rows))
        names = [match[2] for row in rows for match in LINK.finditer(row)]
        pages = [name.removesuffix(".md") for name in names if not name.startswith("..")]
        pages = [name + "index" if name.endswith("/") else name for name in pages]
        toctree = addnodes.toctree(
            parent=self.env.docname, entries=[(None, page) for page in pages], includefiles=pages,
            maxdepth=1, hidden=True, includehidden=False, glob=False, numbered=0, titlesonly=True,
            caption=None,
        )  # fmt: skip
        return [*parsed, nodes.compound("", toctree, classes=["toctree-wrapper"])]


class Built(SphinxDirective):
    """`{built} build/FILE.md`: a page that a command left, without its title, or nothing."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Returns what the file says."""
        file = Path(self.env.srcdir).parent / self.arguments[0]
        self.env.note_dependency(str(file))
        if not file.exists():
            return []
        text = re.sub(r"\A# .*\n", "", file.read_text())
        return self.parse_text_to_nodes(text, allow_section_headings=True)


class Made(SphinxDirective):
    """`{made} MODULE:FUNCTION`: Markdown that a function of tools/pages returns."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Returns what it says."""
        module, _, name = self.arguments[0].partition(":")
        made = getattr(importlib.import_module(f"pages.{module}"), name)()
        return self.parse_text_to_nodes("\n".join(made))


def write_llms(app, problem) -> None:
    """Writes llms.txt: every page of docs/README.md, as Markdown, with a sentence about it."""
    if problem is not None or app.builder.name != "html":
        return
    lines = ["# torch_npusim", "", f"> {SUMMARY}"]
    for heading, rows in sections(Path(app.srcdir) / "README.md").values():
        lines += ["", f"## {heading}", ""]
        for row in rows[2:]:
            links, about = (cell.strip() for cell in row.strip("|").split(" | ", 1))
            about = about.replace("**", "")
            lines += [
                f"- [{name}](_sources/{target}): {about}"
                for name, target in LINK.findall(links)
                if (Path(app.outdir) / "_sources" / target).is_file()
            ]
    (Path(app.outdir) / "llms.txt").write_text("\n".join(lines) + "\n")


def setup(app):
    """Adds the directives `pages`, `built` and `made`, and llms.txt."""
    app.add_directive("built", Built)
    app.add_directive("made", Made)
    app.add_directive("pages", Pages)
    app.connect("build-finished", write_llms)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
