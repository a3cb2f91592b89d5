# SPDX-License-Identifier: BSD-3-Clause
"""Draws the map of the code, from Python API to memory, out of the code: docs/doors/map.svg.

    python tools/pages/architecture_map.py

Rooms and their order are those of csrc/README.md, packages are folders, and the marks of a room are
its includes.
"""

import re
import sys
from collections.abc import Callable
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "doors" / "map.svg"
WIDTH, CELL, GAP, PAD, LINE = 1000, 42, 8, 14, 17
MARKS = {"ATen": "#ee4c2c", "backend": "#0969da", "allocator": "#8a5a00"}
INCLUDE = re.compile(r'^\s*#\s*include\s+["<](\w+)/', re.M)
ROOM = re.compile(r"^\| `(\w+)/?` \| (.*) \|$", re.M)


def rooms() -> dict[str, str]:
    """Returns {room of csrc/: what may enter}, highest first."""
    listed = dict(ROOM.findall((ROOT / "csrc" / "README.md").read_text()))
    return {name: listed[name] for name in reversed(listed) if (ROOT / "csrc" / name).is_dir()}


def includes(folder: str) -> set[str]:
    """Returns the marks of what the files of a folder include."""
    files = [path for path in (ROOT / folder).rglob("*") if path.suffix in (".h", ".cpp")]
    return {name for path in files for name in INCLUDE.findall(path.read_text())} & MARKS.keys()


def packages(folder: str) -> list[str]:
    """Returns the packages in a folder."""
    return sorted(path.parent.name for path in (ROOT / folder).glob("[a-z]*/__init__.py"))


def headers(folder: str) -> list[str]:
    """Returns the names of a folder's headers."""
    return sorted(path.stem for path in (ROOT / folder).glob("*.h"))


class Drawing:
    """Boxes from top to bottom."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.y: float = 0

    def text(self, x: float, y: float, text: str, kind: str) -> None:
        """Writes a line of text."""
        self.parts.append(f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(text)}</text>')

    def box(self, x: float, y: float, wide: float, high: float, kind: str) -> None:
        """Draws a box."""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{wide:g}" height="{high:g}" rx="6" class="{kind}"/>'
        )

    def arrow(self, x: float, text: str) -> None:
        """Points from the layer above to the next one."""
        self.parts.append(f'<path d="M{x:g} {self.y:g}v20m-5-7l5 7l5-7" class="arrow"/>')
        self.text(x + 12, self.y + 15, text, "soft")
        self.y += 24

    def title(self, x: float, wide: float, high: float, title: str, about: str) -> None:
        """Draws the box of a layer and writes its name."""
        self.box(x, self.y, wide, high, "layer")
        self.text(x + PAD, self.y + 25, title, "title")
        self.text(x + PAD + 9.7 * len(title) + 14, self.y + 25, about, "soft")

    def rooms(self, cells: dict[str, tuple[str, set[str]]], columns: int) -> float:
        """Returns the height of boxes with a name, a word about it, and marks; draws them."""
        step = (WIDTH - 2 * PAD + GAP) / columns
        for number, (name, (said, marks)) in enumerate(cells.items()):
            left = PAD + number % columns * step
            top = self.y + 38 + number // columns * (CELL + GAP)
            self.box(left, top, step - GAP, CELL, "cell")
            self.text(left + 10, top + 18, name, "name")
            self.text(left + 10, top + 34, said, "soft")
            for place, mark in enumerate(sorted(marks)):
                x = left + step - GAP - 12 - 13 * place
                self.parts.append(
                    f'<circle cx="{x:g}" cy="{top + 14:g}" r="4.5" fill="{MARKS[mark]}"/>'
                )
        return 38 + -(-len(cells) // columns) * (CELL + GAP) + PAD - GAP

    def names(self, names: list[str], x: float, wide: float, columns: int) -> float:
        """Returns the height of names in columns; draws them."""
        rows = -(-len(names) // columns)
        for number, name in enumerate(names):
            left = x + PAD + number // rows * (wide - 2 * PAD) / columns
            self.text(left, self.y + 46 + LINE * (number % rows), name, "name")
        return 38 + rows * LINE + PAD / 2


def drawn() -> str:
    """Returns the picture."""
    out = Drawing()
    out.title(0, WIDTH, 40, "torch", "Python API, dispatcher, autograd")
    out.y += 40
    out.arrow(PAD + 20, "operators, by the key PrivateUse1; devices, by hooks and guard")

    def layer(title: str, about: str, draw: Callable[[], float]) -> None:
        place = len(out.parts)
        high = draw()
        inside = out.parts[place:]
        del out.parts[place:]
        out.title(0, WIDTH, high, title, about)
        out.parts += inside
        out.y += high

    found = packages("torch_npusim")
    layer("torch_npusim/", "Python packages", lambda: out.names(found, 0, WIDTH, 6))
    out.arrow(PAD + 20, "torch_npusim._C, by pybind11")
    top = out.y
    cells = {
        name: (re.split(r": | \(|;", about.replace("`", ""))[0], includes(f"csrc/{name}"))
        for name, about in rooms().items()
    }
    layer("csrc/", "a room includes rooms after it in this order", lambda: out.rooms(cells, 3))
    for place, (mark, colour) in enumerate(MARKS.items()):
        x = WIDTH - 375 + 125 * place
        out.parts.append(f'<circle cx="{x}" cy="{top + 20:g}" r="4.5" fill="{colour}"/>')
        out.text(x + 10, top + 24, f"includes {mark}", "soft")
    start = out.y
    out.arrow(PAD + 20, "commands, memory, time")
    out.y = start
    out.arrow(WIDTH / 2 + PAD + 20, "segments, through the port Provider")
    half = WIDTH / 2 - GAP / 2
    lists = {name: headers(name) for name in ("backend", "allocator")}
    high = 38 + LINE * max(-(-len(found) // 3) for found in lists.values()) + PAD / 2
    abouts = ("the machine: std and POSIX only", "bookkeeping: std only")
    for x, (name, found), about in zip((0, half + GAP), lists.items(), abouts, strict=True):
        out.title(x, half, high, f"{name}/", about)
        out.names(found, x, half, 3)
    out.y += high
    style = (
        "text{font:12px system-ui,sans-serif;fill:#1b1f24}.title{font:600 16px ui-monospace,"
        "monospace}.name{font:600 12px ui-monospace,monospace}.soft{font-size:11px;fill:#59636e}"
        ".layer{fill:#f6f8fa;stroke:#d1d9e0}.cell{fill:#fff;stroke:#d1d9e0}"
        ".arrow{fill:none;stroke:#59636e;stroke-width:1.5}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-4 -4 {WIDTH + 8} {out.y + 8:g}">\n'
        f'<style>{style}</style>\n<rect x="-4" y="-4" width="100%" height="100%" fill="#fff"/>\n'
        + "\n".join(out.parts)
        + "\n</svg>\n"
    )


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(drawn())
    sys.stdout.write(f"{PICTURE.relative_to(ROOT)}\n")
