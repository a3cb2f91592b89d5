# SPDX-License-Identifier: BSD-3-Clause
"""Reports of the instruments: text of at most 100 columns, and a page through the shared shell."""

import textwrap
from html import escape
from pathlib import Path

WIDTH = 100

#: Columns of the text, and the size of a drawing, are kept: a narrow window scrolls within them.
NO_WRAP = """pre { white-space: pre }
.wide svg { max-width: none }
"""


class Picture(str):
    """An SVG drawing, which a notebook shows."""

    def _repr_svg_(self) -> str:
        return str(self)

    def __repr__(self) -> str:
        return f"<SVG of {len(self)} characters; the report's .save('picture.svg') writes it>"


class Report:
    """Text when it is printed; a page by to_html(), and in a notebook."""

    title = "Inside"

    def text(self) -> str:
        """Returns the report for a terminal."""
        raise NotImplementedError

    def picture(self) -> Picture:
        """Returns an SVG drawing, or ""."""
        return Picture()

    def to_html(self) -> str:
        """Returns a page that needs no network."""
        from torch_npusim import _page_shell

        body = f"<h1>{escape(self.title)}</h1>\n<div class='wide'>{self.picture()}</div>\n"
        body += f"<pre>{escape(self.text())}</pre>"
        return _page_shell.page(f"inside: {self.title}", body, NO_WRAP)

    def save(self, path: str | Path) -> None:
        """Writes the page; a path that ends in .svg gets the drawing alone.

        Raises:
            ValueError: If it ends in .svg and the report has no drawing.
        """
        path = Path(path)
        if path.suffix == ".svg" and not self.picture():
            raise ValueError(f"{type(self).__name__} has no drawing: save it as .html")
        path.write_text(self.picture() if path.suffix == ".svg" else self.to_html())

    def _repr_html_(self) -> str:
        return f"{self.picture()}<pre>{escape(self.text())}</pre>"

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:  # at the prompt
        return self.text()


def wrapped(line: str, indent: str, hang: str = "    ") -> list[str]:
    """Returns `indent` and a line, folded to WIDTH; the lines that follow hang."""
    return textwrap.wrap(
        line,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + hang,
        break_long_words=True,
        break_on_hyphens=False,
    ) or [indent.rstrip()]


class Drawing:
    """Shapes of an SVG picture, from the back to the front."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._width = self._height = 0.0

    def box(
        self, x: float, y: float, width: float, height: float, *, fill: str, line: str = "#59636e",
        tip: str = "",
    ) -> None:  # fmt: skip
        """Draws a rectangle; `tip` is shown under the pointer."""
        self._grow(x + width, y + height)
        title = f"<title>{escape(tip)}</title>" if tip else ""
        self._parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="3" '
            f'fill="{fill}" stroke="{line}">{title}</rect>'
        )

    def words(
        self, x: float, y: float, text: str, *, size: int = 12, anchor: str = "start",
        colour: str = "#1b1f24",
    ) -> None:  # fmt: skip
        """Writes a line; x and y are its left end, middle or right end on the base line."""
        wide = len(text) * size * 0.61
        self._grow(x + wide * {"start": 1, "middle": 0.5, "end": 0}[anchor], y + size * 0.4)
        self._parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
            f'fill="{colour}">{escape(text)}</text>'
        )

    def arrow(self, x1: float, y1: float, x2: float, y2: float, colour: str = "#59636e") -> None:
        """Draws a line with a head at its end."""
        self._grow(max(x1, x2), max(y1, y2))
        self._parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
            'marker-end="url(#head)"/>'
        )

    def _grow(self, x: float, y: float) -> None:
        self._width, self._height = max(self._width, x), max(self._height, y)

    def svg(self, label: str) -> Picture:
        """Returns the picture; `label` says what is seen."""
        width, height = self._width + 10, self._height + 10
        return Picture(
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
            f'width="{width:.0f}" height="{height:.0f}" role="img" aria-label="{escape(label)}" '
            'font-family="ui-monospace, Menlo, Consolas, monospace">'
            '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
            'markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z" fill="#59636e"/></marker>'
            "</defs>"
            f'<rect width="100%" height="100%" fill="#fff"/>{"".join(self._parts)}</svg>'
        )
