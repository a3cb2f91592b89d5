# SPDX-License-Identifier: BSD-3-Clause
"""`upstream`: runs PyTorch's own test files on a device."""

import argparse
import os
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npusim_conformance.cli import options as shared
from npusim_conformance.cli import status
from npusim_conformance.cli.execution import add_execution, config_of, execute

if TYPE_CHECKING:  # imports torch, before it is decided what `import torch` loads
    from npusim_conformance.upstream.collection import Collected


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Adds this subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "upstream",
        help="run PyTorch's own test files on a device",
        description="Runs test files from a PyTorch source tree of yours that fits the installed "
        "torch: one process per file, a crash or hang costs one test. Exclusions are the [[skip]] "
        "and [[xfail]] entries for upstream:* in the expectations file. Without --import, the "
        "backend is the one that `import torch` loads.",
    )
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="files or folders")
    parser.add_argument("--tests", default="", metavar="GLOBS", help="on Class.test_name")
    shared.add_device(parser)
    add_execution(parser)
    parser.set_defaults(isolation="spawn")
    return parser


def run(options: argparse.Namespace) -> int:
    """Collects, executes, reports; what was not run is said at the end."""
    from npusim_conformance.backend import expectations

    if options.isolation == "fork":
        raise expectations.ExpectationsError(
            "--isolation fork cannot be used here: torch must load the backend before its own "
            "testing modules. Use spawn, or none."
        )
    declared = shared.expectations_of(options)
    files, root = _files(options.paths)
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0" if declared.import_name else "1"
    from npusim_conformance.case import Case, matches
    from npusim_conformance.upstream.collection import collect

    collected = collect(files, root, options.device, declared.import_name)
    names = [name for name in collected.names if matches(Case.parse(name).property, options.tests)]
    code = status.EXIT_NOTHING_EXECUTED
    if names:
        selection = {"upstream": [str(path) for path in options.paths], "tests": options.tests}
        config = config_of(options, declared, upstream_root=str(root))
        code = execute(options, config, names, selection)
    else:
        print("npusim-conformance: no test fits", file=sys.stderr)
    print(_not_run(collected, len(names), shared.directory_of(options)), file=sys.stderr)
    if code == status.EXIT_OK and collected.unusable:
        return status.EXIT_FAILURES
    return code


def _not_run(collected: "Collected", chosen: int, directory: Path) -> str:
    """Which tests said nothing about the device, and why, the most frequent reason first."""
    from npusim_conformance.record.log import read
    from npusim_conformance.verdict import Status

    reasons: Counter[str] = Counter()
    if len(collected.names) > chosen:
        reasons["not chosen by --tests"] = len(collected.names) - chosen
    if chosen:
        for outcome in read(directory).outcomes.values():
            if outcome.status in (Status.NA, Status.SKIPPED):
                reasons[outcome.message] += 1
    lines = [f"{count:7} {why}" for why, count in reasons.most_common()]
    lines += [
        f"{left.tests:7} {left.subject}, {left.suite}: {left.why}" for left in collected.left_out
    ]
    lines += [f"   file {subject}: {why}" for subject, why in collected.unusable.items()]
    head = [f"{collected.plain} of {len(collected.names)} tests are in classes that name no device"]
    return "\n".join([*head, "not run:", *(lines or ["   nothing"])])


def _files(paths: list[Path]) -> tuple[list[Path], Path]:
    """Test files, and the folder that their names are relative to."""
    files: list[Path] = []
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist; name test files or folders")
        files += sorted(path.resolve().rglob("test_*.py")) if path.is_dir() else [path.resolve()]
    folders = [path if path.is_dir() else path.parent for path in paths]
    return files, Path(os.path.commonpath([folder.resolve() for folder in folders]))
