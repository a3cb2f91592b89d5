# SPDX-License-Identifier: BSD-3-Clause
"""Reference pages from their own tables: command lines, options of pytest, stubs, docstrings.

`{command} torch_npusim.cli:parser` writes each subcommand and option of an argparse parser;
`{pytest-plugin}` writes the options, ini options, marker and fixtures of the plugin.
"""

import __future__

import argparse
import importlib
import re
import typing
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective


class Command(SphinxDirective):
    """A command, from its argparse parser."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Returns a section per subcommand."""
        module, _, name = self.arguments[0].partition(":")
        parser: argparse.ArgumentParser = getattr(importlib.import_module(module), name)()
        found: list[nodes.Node] = []
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                found += [self._section(one) for one in dict.fromkeys(action.choices.values())]
        return found

    def _section(self, parser: argparse.ArgumentParser) -> nodes.section:
        section = nodes.section(ids=[nodes.make_id(parser.prog)], names=[parser.prog])
        section += nodes.title(parser.prog, parser.prog)
        if parser.description:
            section += nodes.paragraph("", sentence(parser.description))
        usage = re.sub(r"^usage: ", "", parser.format_usage())
        section += nodes.literal_block(usage, usage, language="text")
        section += self.described(parser)
        return section

    def described(self, parser: argparse.ArgumentParser) -> nodes.definition_list:
        """Returns the arguments of a parser, each with what it does."""
        formatter = parser._get_formatter()
        listed = nodes.definition_list()
        for action in parser._actions:
            if action.help == argparse.SUPPRESS or isinstance(action, argparse._HelpAction):
                continue
            listed += self.option(
                parser.prog,
                action.option_strings,
                formatter._format_action_invocation(action),
                formatter._expand_help(action) if action.help else "",
            )
        return listed

    def option(self, program: str, names: list[str], term: str, text: str) -> nodes.Node:
        """Returns one argument, which other pages can refer to as {option}."""
        item = nodes.definition_list_item()
        item += nodes.term("", "", nodes.literal(term, term))
        item += nodes.definition("", nodes.paragraph("", sentence(text)))
        for name in names:
            key = nodes.make_id(f"{program} {name}")
            item[0]["ids"].append(key)
            domain = self.env.domains.standard_domain
            domain.add_program_option(program, name, self.env.docname, key)
        return item


class PytestPlugin(Command):
    """The options of the pytest plugin, as the plugin itself tells pytest."""

    required_arguments = 0

    def run(self) -> list[nodes.Node]:
        """Returns options, ini options, the marker and fixtures."""
        from torch_npusim_entry_points import pytest_plugin

        told = Told()
        pytest_plugin.pytest_addoption(told)
        fixtures = nodes.definition_list()
        for name, value in vars(pytest_plugin).items():
            if type(value).__name__ == "FixtureFunctionDefinition":
                fixtures += self.option("pytest", [], name, value.__doc__)
        ini = nodes.definition_list()
        for name, text in told.ini.items():
            ini += self.option("pytest", [], name, text)
        marker = nodes.definition_list()
        signature, _, text = pytest_plugin._MARKER.partition(": ")
        marker += self.option("pytest", [], f"@pytest.mark.{signature}", text)
        parts = {
            "Options": self.described(told.parser),
            "Settings of pytest.ini or pyproject.toml": ini,
            "Marker": marker,
            "Fixtures": fixtures,
        }
        found = []
        for title, content in parts.items():
            section = nodes.section(ids=[nodes.make_id(title)], names=[title])
            section += [nodes.title(title, title), content]
            found.append(section)
        return found


class Told:
    """Takes what a plugin tells pytest's parser."""

    def __init__(self) -> None:
        self.parser = argparse.ArgumentParser(prog="pytest", add_help=False)
        self.ini: dict[str, str] = {}
        self.addoption = self.parser.add_argument

    def getgroup(self, name: str, description: str) -> "Told":
        """Returns itself: there is one group."""
        return self

    def addini(self, name: str, help: str, **_: Any) -> None:
        """Notes a setting."""
        self.ini[name] = help


def sentence(text: str) -> str:
    """Returns help as a sentence begins and ends."""
    text = " ".join(text.split())
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


# --- Docstrings


def documented_by_stubs(package: str, compiled: str) -> None:
    """Shows compiled classes as their stub describes them: signatures, types, docstrings."""
    home = importlib.import_module(package)
    path = Path(importlib.import_module(compiled).__file__).with_name(
        compiled.rpartition(".")[2] + ".pyi"
    )
    typing.type_check_only = lambda kind: kind  # which exists for type checkers only
    stub: dict[str, Any] = {"__name__": compiled}
    exec(compile(path.read_text(), path, "exec", __future__.annotations.compiler_flag), stub)
    for name in home.__all__:
        if getattr(getattr(home, name), "__module__", "") == compiled:
            setattr(home, name, stub[name])


def docstring(app, what, name, obj, options, lines) -> None:
    """Marks code that is only indented, and escapes what reStructuredText would interpret."""
    # napoleon takes words before the first colon for a type; annotations have the types.
    marked = ["\\ "] if what in ("attribute", "data", "property") else []
    for i, line in enumerate(lines):
        before = lines[i - 2] if i > 1 and not lines[i - 1] else ""
        is_code = line.startswith("    ") and before and not before.startswith((" ", "- ", "* "))
        if is_code and not before.endswith("::"):
            marked += ["::", ""]
        marked.append(line if line.lstrip().startswith(">>>") else escaped(line))
        if line in ("Returns:", "Yields:"):
            marked.append("    \\ ")
    lines[:] = marked


def escaped(line: str) -> str:
    """Returns a line in which `*args`, `sim/*.toml` and `NPUSIM_` outside of code are text."""
    parts = line.split("`")
    parts[::2] = [re.sub(r"(?<=\w)_(?!\w)|\*(?=[\w.])", r"\\\g<0>", part) for part in parts[::2]]
    return "`".join(parts)


def setup(app):
    """Adds the directives, and what autodoc is told."""
    app.add_directive("command", Command)
    app.add_directive("pytest-plugin", PytestPlugin)
    app.connect("autodoc-process-docstring", docstring, priority=100)  # before napoleon
    documented_by_stubs("npusim_lab", "npusim_lab._lab")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
