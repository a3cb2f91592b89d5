# SPDX-License-Identifier: BSD-3-Clause
"""Runs the code blocks of a page as written, from top to bottom, as a reader would type them.

    pages.py docs/use/graphs.md        runs one page, and prints each block that fails

Blocks of `python` run in one session (a block with a `__main__` guard runs as a script), `sh` and
`console` in one shell, whose variables and folder persist. The output below a `$` of a console
block is compared; so is the comment after `print(...)`. "..." stands for any text. `text` is not
run. blocks.toml says, with a reason, which blocks need something else. Of its blocks with `figures`
every figure in the section's prose is one that the block prints, rounded as it stands there.
"""

import contextlib
import dataclasses
import difflib
import io
import json
import linecache
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TABLE = tomllib.loads((Path(__file__).parent / "blocks.toml").read_text())
ROWS = [
    {"page": page, "starts": starts, **row}
    for page, rows in TABLE["block"].items()
    for starts, row in rows.items()
]
# A cell of a page that the site runs is a block of Python; other directives are no code.
FENCE = re.compile(
    r"^( *)(`{3,})(?:\{code-cell\} )?(\w*|\{[\w-]+\}[^\n]*)\n(.*?)^\1\2$", re.S | re.M
)
# Wall-clock seconds at the end of a line, and their heading: its place depends on their digits.
WALL = r" +(seconds|0\.0\d+)$"
# Frames that warm.py adds to a stack.
WARM = (
    r" +(<frozen runpy>|\S*/warm\.py):\d+ in .*\n|  +\.\.\. and \d+ frames more\n"
    r"| +(runpy\._run_module_as_main|exec\(compile)\(.*\n"
)
FIGURE = re.compile(r"(\d[\d,]*(?:\.\d+)?) (?:MiB|GiB|ms|tokens/s|%)")
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
KEYS = {"page", "starts", "skip", "target", "save", "raises", "figures"}


@dataclasses.dataclass
class Block:
    """A block of code, the line of its page on which it begins, and its row of blocks.toml."""

    page: str
    line: int
    language: str
    code: str
    row: dict[str, Any]


def blocks(page: str) -> list[Block]:
    """Returns the blocks of a page."""
    text = (ROOT / page).read_text()
    found = []
    for match in FENCE.finditer(text):
        indent, _, language, code = match.groups()
        if language.startswith("{"):
            continue
        code = re.sub(rf"^{indent}", "", code, flags=re.M)
        rows = [
            row
            for row in ROWS
            if row["page"] == page and code.lstrip("$ ").startswith(row["starts"])
        ]
        rows.sort(key=lambda row: -len(row["starts"]))  # the most particular one counts
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(page, line, language, code, rows[0] if rows else {}))
    return found


def matches(expected: str, printed: str) -> bool:
    """Says whether text is as expected, where "..." stands for anything."""
    parts = [re.escape(part.strip()) for part in expected.strip().split("...")]
    return re.fullmatch(r"\s*.*?\s*".join(parts), printed.strip(), re.S) is not None


class Session:
    """A reader's session: a folder, the shell's variables, and the names of a Python prompt."""

    def __init__(self, folder: Path, page: str):
        told = TABLE["page"].get(page, {})
        self.folder, self.page, self.names = folder, page, {"__name__": "__main__"}
        self.variables = dict(os.environ) | told.get("environment", {}) | {"PWD": str(folder)}
        for name, text in told.get("files", {}).items():
            (folder / name).write_text(text.lstrip())
        self.given = told.get("given")
        self.printed = ""  # by the shell, since somebody emptied it

    def shell(self, command: str) -> tuple[int, str]:
        """Runs a command of the shell; returns its status and what it printed."""
        state = self.folder.parent / f"{self.folder.name}.state"
        script = f"trap 'pwd > {state}; env -0 >> {state}' EXIT\nset -e\n{command}"
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.variables["PWD"],
            env=self.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        printed = re.sub(WARM, "", done.stdout)
        self.printed += printed
        folder, _, variables = state.read_text().partition("\n")
        self.variables = dict(pair.split("=", 1) for pair in variables.split("\0") if pair)
        self.variables["PWD"] = folder
        return done.returncode, printed

    def python(self, code: str, name: str) -> str:
        """Runs code in the session's Python; returns what it printed."""
        os.chdir(self.folder)
        for variable in self.variables.keys() - os.environ.keys():
            os.environ[variable] = self.variables[variable]
        sys.path[0] = str(self.folder)
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, name, "exec"), self.names)
        return printed.getvalue()

    def run(self, block: Block) -> str | None:
        """Runs a block. Returns what is wrong, or None."""
        row = block.row
        if "save" in row:
            (self.folder / row["save"]).write_text(block.code)
            return None
        if block.language == "console":
            return self.console(block)
        if block.language == "sh" or "__main__" in block.code:
            command = block.code
            if block.language == "python":
                (self.folder / "script.py").write_text(block.code)
                command = "python script.py"
            status, printed = self.shell(command)
            return f"status {status}\n{printed}" if status else said(block.code, printed)
        if self.given is not None:  # once, before the first block of Python
            given, self.given = self.given, None
            self.python(given, "<given>")
        try:
            printed = self.python(block.code, f"{self.page}:{block.line}")
        except Exception as error:
            if type(error).__name__ == row.get("raises"):
                return None
            raise
        return said(block.code, printed) or (
            f"{row['raises']} was not raised" if "raises" in row else None
        )

    def console(self, block: Block) -> str | None:
        """Runs the commands after `$`, and compares what they print with the lines below them."""
        for part in re.split(r"^\$ ", block.code, flags=re.M)[1:]:
            command, _, shown = part.partition("\n")
            status, printed = self.shell(command)
            expected, printed = (re.sub(WALL, "", text, flags=re.M) for text in (shown, printed))
            if status and not shown.strip():
                return f"{command}: status {status}\n{printed}"
            if shown.strip() and not matches(expected, printed):
                lines = expected.splitlines(), printed.splitlines()
                return "\n".join(
                    difflib.unified_diff(*lines, "the page", command, n=9, lineterm="")
                )
        return None


def said(code: str, printed: str) -> str | None:
    """Compares the comments after `print(...)` with what was printed."""
    for text in re.findall(r"^ *print\(.*\)  # (.*)$", code, re.M):
        parts = [re.escape(part.strip()) for part in text.split("...")]
        if not re.search(".*?".join(parts), printed, re.S):
            return f"{text!r} was not printed, but\n{printed}"
    return None


def section_of(block: Block) -> str:
    """Returns the section of the page that a block is in, with its heading."""
    lines = (ROOT / block.page).read_text().splitlines(keepends=True)
    before = "".join(lines[: block.line]).rpartition("\n## ")[2]
    return before + "".join(lines[block.line :]).partition("\n## ")[0]


def figures_not_printed(prose: str, printed: str) -> list[str]:
    """Returns the figures with a unit that no number of a text is, in units of 1 or of 1,024."""
    numbers = [float(text.replace(",", "")) for text in NUMBER.findall(printed)]
    wrong = []
    for figure in FIGURE.finditer(re.sub(FENCE, "", prose)):
        value = float(figure[1].replace(",", ""))
        half = 0.5001 * 10.0 ** -len(figure[1].partition(".")[2])
        if not any(abs(x * by - value) <= half for x in numbers for by in (1, 1024, 1 / 1024)):
            wrong.append(figure[0])
    return wrong


def chosen(page: str, target: str | None) -> list[Block]:
    """Returns the blocks of a page that run, in `make test` or under a target."""
    return [
        block
        for block in blocks(page)
        if block.language in {"python", "sh", "console"}
        and "skip" not in block.row
        and block.row.get("target", target) == target
    ]


def run_page(page: str, target: str | None) -> list[str]:
    """Runs the blocks of a page; returns what is wrong."""
    wrong = []
    with tempfile.TemporaryDirectory(prefix="npusim-page-") as folder:
        (Path(folder) / "work").mkdir()
        session = Session(Path(folder) / "work", page)
        for block in chosen(page, target):
            if "examples/" in block.code and not (session.folder / "examples").exists():
                (session.folder / "examples").symlink_to(ROOT / "examples")
            session.printed = ""
            try:
                problem = session.run(block)
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
            if not problem and "figures" in block.row:
                problem = ", ".join(figures_not_printed(section_of(block), session.printed))
            if problem:
                wrong.append(f"{page}:{block.line}: {problem}")
    return wrong


if __name__ == "__main__":
    problems = run_page(sys.argv[1], os.environ.get("NPUSIM_TESTS"))
    print(json.dumps(problems) if "--json" in sys.argv else "\n\n".join(problems))
    sys.exit(bool(problems))
