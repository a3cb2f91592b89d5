# SPDX-License-Identifier: BSD-3-Clause
"""Files and folders outside of docs/ that pages link to: each is a page of the site, highlighted.

A relative link works on a forge as it stands. Here it leads to `files/PATH.html`.
"""

import os
from html import escape
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform

TEXT = {".md", ".toml", ".txt", ".json", ".csv", ".py", ".h", ".cpp", ".yml", ".sh"}
LEXERS = {".py": "python", ".h": "cpp", ".cpp": "cpp", ".toml": "toml", ".json": "json"}
LEXERS |= {".md": "markdown", ".yml": "yaml", ".sh": "sh"}


class FilesOfTheRepository(SphinxTransform):
    """Turns links that leave docs/ into links to the pages of their files."""

    default_priority = 210  # before download references are collected

    def apply(self) -> None:
        """Looks at every reference of a page."""
        root = Path(self.env.srcdir).parent
        for kind in (addnodes.pending_xref, addnodes.download_reference):
            for node in list(self.document.findall(kind)):
                target = node["reftarget"].partition("#")[0]
                if node.get("reftype") != "myst" or not target:
                    continue
                folder = Path(self.env.doc2path(self.env.docname)).parent
                path = Path(os.path.normpath(folder / target))
                if node.get("refdomain") == "doc":
                    path = Path(os.path.normpath(Path(self.env.srcdir) / f"{target}.md"))
                if not path.exists() or not path.is_relative_to(root):
                    continue
                if not path.is_relative_to(self.env.srcdir):
                    self._to_a_file(node, str(path.relative_to(root)))
                elif (path / "index.md").exists():
                    node["refdomain"] = "doc"
                    node["reftarget"] = str((path / "index").relative_to(self.env.srcdir))
                    node["reftargetid"] = None

    def _to_a_file(self, node: nodes.Element, name: str) -> None:
        linked(self.env).setdefault(self.env.docname, set()).add(name)
        up = "../" * self.env.docname.count("/")
        link = nodes.reference("", "", *node.children, refuri=f"{up}files/{name}.html")
        link["internal"] = True
        node.replace_self(link)


def linked(env) -> dict[str, set[str]]:
    """Returns the names of linked files by page."""
    if not hasattr(env, "npusim_linked_files"):
        env.npusim_linked_files = {}
    return env.npusim_linked_files


def purge(app, env, docname) -> None:
    """Forgets the links of a page that is read anew."""
    linked(env).pop(docname, None)


def merge(app, env, docnames, other) -> None:
    """Takes the links that another process has read."""
    linked(env).update({name: linked(other)[name] for name in docnames if name in linked(other)})


def pages(app):
    """Yields a page of the site per linked file, or folder and the files in it."""
    root = Path(app.srcdir).parent
    names = set().union(*linked(app.env).values())
    for name in sorted(names):
        if (root / name).is_dir():
            names |= {str(path.relative_to(root)) for path in _files(root / name)}
    for name in sorted(names):
        up = "../" * (name.count("/") + 1)
        if (root / name).is_dir():
            links = [str(path.relative_to(root)) for path in _files(root / name)]
            items = [f'<li><a href="{up}files/{n}.html">{escape(n)}</a></li>' for n in links]
            body = f"<ul>{''.join(items)}</ul>"
        else:
            lexer = LEXERS.get(Path(name).suffix, "text")
            text = (root / name).read_text()
            body = app.builder.highlighter.highlight_block(text, lexer, force=True)
        title = escape(name)
        yield f"files/{name}", {"title": title, "body": f"<h1>{title}</h1>{body}"}, "page.html"


def _files(folder: Path) -> list[Path]:
    found = sorted(path for path in folder.rglob("*") if path.suffix in TEXT)
    return [path for path in found if not {"build", "__pycache__"} & set(path.parts[-3:])]


def setup(app):
    """Adds the transform and the pages."""
    app.add_transform(FilesOfTheRepository)
    app.connect("env-purge-doc", purge)
    app.connect("env-merge-info", merge)
    app.connect("html-collect-pages", pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
