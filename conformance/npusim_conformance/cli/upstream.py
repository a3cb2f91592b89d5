# SPDX-License-Identifier: BSD-3-Clause
"""`upstream`: runs PyTorch's own device-generic test files on a device."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from npusim_conformance.cli import options as shared
from npusim_conformance.cli.run import add_execution


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Adds this subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "upstream",
        help="run PyTorch's own test files on a device",
        description="Runs device-generic test files from a PyTorch source tree of yours that fits "
        "the installed torch: one process per file, a crash or hang costs one test. Exclusions "
        "are the [[skip]] and [[xfail]] entries for upstream:* in the expectations file.",
    )
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="files or folders")
    parser.add_argument("--tests", default="", metavar="GLOBS", help="on Class.test_name")
    shared.add_device(parser)
    add_execution(parser)
    parser.set_defaults(isolation="spawn")
    return parser


def run(options: argparse.Namespace) -> int:
    """Collects, executes, reports."""
    from npusim_conformance import cli, expectations, upstream
    from npusim_conformance.case import Case, matches
    from npusim_conformance.cli.run import execute

    if options.isolation == "fork":
        raise expectations.ExpectationsError(
            "--isolation fork cannot be used here: torch must load the backend before its own "
            "testing modules. Use spawn, or none."
        )
    declared = expectations.Expectations()
    if options.expect is not None:
        declared = expectations.load(options.expect)
    files, root = _files(options.paths)
    import_name = options.import_name or declared.import_name
    names, unusable = upstream.collect(files, root, options.device, import_name)
    for subject, why in unusable.items():
        print(f"npusim-conformance: {subject}: {why}", file=sys.stderr)
    names = [name for name in names if matches(Case.parse(name).property, options.tests)]
    if not names:
        print("npusim-conformance: no test fits", file=sys.stderr)
        return cli.EXIT_NOTHING_EXECUTED
    selection = {"upstream": [str(path) for path in options.paths], "tests": options.tests}
    return execute(options, names, declared, selection, None, upstream_root=str(root))


def _files(paths: list[Path]) -> tuple[list[Path], Path]:
    """Test files, and the folder that their names are relative to."""
    files: list[Path] = []
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist; name test files or folders")
        files += sorted(path.resolve().rglob("test_*.py")) if path.is_dir() else [path.resolve()]
    folders = [path if path.is_dir() else path.parent for path in paths]
    return files, Path(os.path.commonpath([folder.resolve() for folder in folders]))
