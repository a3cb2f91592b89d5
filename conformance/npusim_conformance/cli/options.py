# SPDX-License-Identifier: BSD-3-Clause
"""Options that several subcommands share, and the values that they stand for."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from npusim_conformance.cases.near import meant
from npusim_conformance.cases.selection import PROFILES, Selection

if TYPE_CHECKING:  # these import torch, which --help need not wait for
    from npusim_conformance.backend.expectations import Expectations
    from npusim_conformance.run.budget import Budget


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Options that choose cases."""
    group = parser.add_argument_group(
        "what to run", "GLOBS are comma-separated; a leading ~ excludes"
    )
    group.add_argument(
        "--profile",
        choices=PROFILES,
        default="standard",
        help="smoke: a minute, one dtype; standard: values in all dtypes; full: everything",
    )
    group.add_argument(
        "--ops", type=subjects, default="", metavar="GLOBS", help="operators, or kind:name"
    )
    group.add_argument("--dtypes", default="", metavar="GLOBS")
    group.add_argument("--props", default="", metavar="GLOBS", help="properties")
    group.add_argument(
        "--family", default="", metavar="GLOBS", help="linalg, nn, unary ..., or a kind of case"
    )
    group.add_argument(
        "--shard", type=shard, default=(1, 1), metavar="I/N", help="the Ith of N parts"
    )
    group.add_argument(
        "--max-samples", type=positive, metavar="N", help="per case; default: the profile's"
    )


def add_device(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """Options that name the device and what is declared about it."""
    group = parser.add_argument_group("the device")
    group.add_argument("--device", required=required, help="as in torch.device(), as mychip")
    group.add_argument(
        "--import", dest="import_name", default="", metavar="MODULE", help="module to import first"
    )
    group.add_argument(
        "--expect", type=Path, metavar="FILE", help="the backend's expectations, in TOML"
    )


def subjects(text: str) -> str:
    """The globs of --ops. Raises ArgumentTypeError for the name of a case, and for a near miss."""
    for word in text.split(","):
        subject, slash, rest = word.strip().partition("/")
        if slash:
            props = "" if rest == "*" else f" --props '{rest.partition('/')[0]}'"
            raise argparse.ArgumentTypeError(
                f"{word.strip()!r} names cases; did you mean --ops '{subject}'{props}?"
            )
        if found := meant(subject):
            raise argparse.ArgumentTypeError(f"no {subject!r}; did you mean {found!r}?")
    return text


def selection_of(options: argparse.Namespace) -> Selection:
    """The Selection that the options describe."""
    return Selection(
        profile=options.profile,
        subjects=options.ops,
        properties=options.props,
        dtypes=options.dtypes,
        families=options.family,
        shard=options.shard,
        samples_max=options.max_samples,
    )


def expectations_of(options: argparse.Namespace) -> "Expectations":
    """The expectations file, or the empty expectations; --import overrides the file's module."""
    from npusim_conformance.backend.expectations import load

    loaded = load(options.expect)
    return replace(loaded, import_name=options.import_name or loaded.import_name)


def add_delivery(parser: argparse._ActionsContainer) -> None:
    """Options of the commands that end with a summary."""
    parser.add_argument("--baseline", type=Path, metavar="DIR", help="compare with this run")
    parser.add_argument(
        "--annotations",
        choices=("github",),
        help="errors as annotations of the step, and a summary of the job",
    )


def directory_of(options: argparse.Namespace) -> Path:
    """Where a run's log and reports go."""
    chosen: Path | None = options.out
    return chosen or Path(f"conformance-{options.device.replace(':', '-')}")


def shard(text: str) -> tuple[int, int]:
    """Parses "2/3"."""
    number, slash, count = text.partition("/")
    if slash and number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count):
        return int(number), int(count)
    raise argparse.ArgumentTypeError(f"{text!r}; expected I/N with 1 <= I <= N, as in 2/3")


def time_budget(text: str) -> "Budget":
    """Parses "20m"; the time runs from here."""
    from npusim_conformance.run.budget import Budget

    try:
        return Budget.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def positive(text: str) -> int:
    """Parses a positive integer."""
    if text.isdigit() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r}; expected a positive integer")
