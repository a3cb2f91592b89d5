# SPDX-License-Identifier: BSD-3-Clause
"""`new-backend NAME`: a PyTorch backend of your own, which compiles and works."""

import argparse
import json
import keyword
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from npusim_conformance.cli.status import EXIT_FAILURES, EXIT_OK

TEMPLATE = Path(__file__).resolve().parents[1] / "new_backend"
STEPS = range(1, 7)
_NAME = "mychip"  # in the template
_PREFIXES = ("cpu", "cuda", "hpu", "meta", "mps", "xpu")  # of torch.serialization
_ELSEWHERE = {"github_workflow.yml": ".github/workflows/conformance.yml"}


class NotWritten(Exception):
    """Nothing was written; the message says why."""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Adds this subcommand."""
    text = "write a PyTorch backend for a chip of yours, that compiles and works"
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "new-backend", help=text, description=text
    )
    parser.add_argument("name", help="as in torch.device(NAME): lower-case letters and digits")
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: torch_NAME")
    parser.add_argument(
        "--step",
        type=int,
        choices=STEPS,
        metavar="N",
        help="add step N (1 to 6) of docs/judge/new_backend.md to the project that is there",
    )
    parser.add_argument("--json", action="store_true", help="the files, as JSON")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Writes the files; EXIT_FAILURES where it must not."""
    folder = arguments.out or Path(f"torch_{arguments.name}")
    try:
        check_name(arguments.name)
        written = write(arguments.name, folder, arguments.step)
    except NotWritten as problem:
        sys.stderr.write(f"npusim-conformance new-backend: {problem}\n")
        return EXIT_FAILURES
    shown = [str(path.relative_to(folder)) for path in written]
    if arguments.json:
        print(json.dumps({"folder": str(folder), "files": shown}, indent=2))
        return EXIT_OK
    print(f"{folder}: {', '.join(shown)}")
    if arguments.step is None:
        print(f"next: cd {folder} && pip install --no-build-isolation -e . && pytest tests")
    return EXIT_OK


def check_name(name: str) -> None:
    """Raises NotWritten for what cannot be the name of a new device."""
    import torch

    if not re.fullmatch("[a-z][a-z0-9]*", name):
        raise NotWritten(
            f"{name!r} is no name of a device: lower-case letters and digits, as mychip"
        )
    if keyword.iskeyword(name) or name == "torch":
        raise NotWritten(
            f"{name!r} is a word of Python or torch, so torch.{name} cannot be written"
        )
    try:
        torch.device(name)
    except RuntimeError:
        pass
    else:
        raise NotWritten(f"torch knows a device {name!r} already")
    # Deserializers of torch go by the beginning of a location (pytorch 165455): in torch 2.13 that
    # of mps, in older ones all.
    if taken := [known for known in _PREFIXES if name.startswith(known)]:
        raise NotWritten(f"torch.load() can take {name!r} for {taken[0]!r}, with which it begins")


def write(name: str, folder: Path, step: int | None = None) -> list[Path]:
    """Writes the project, or adds a step to it; returns the files.

    Raises:
        NotWritten: If a file that differs is there, or the project is not.
    """
    there = (folder / f"torch_{name}").is_dir()
    if step is not None and not there:
        raise NotWritten(f"{folder} holds no torch_{name}; write it first, without --step")
    source = TEMPLATE / "project" if step is None else TEMPLATE / "steps" / str(step)
    files = {folder / path: text for path, text in _files(source, name)}
    for path, text in files.items():
        if path.exists() and path.read_text() != text:
            raise NotWritten(f"{path} is there already, and says something else")
    for path, text in files.items():
        if not path.exists():  # what is the same keeps its time: nothing is compiled again
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return sorted(files)


def _files(source: Path, name: str) -> Iterator[tuple[str, str]]:
    for path in sorted(source.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            place = str(path.relative_to(source))
            yield _named(_ELSEWHERE.get(place, place), name), _named(path.read_text(), name)


def _named(text: str, name: str) -> str:
    return text.replace(_NAME, name).replace(_NAME.upper(), name.upper())
