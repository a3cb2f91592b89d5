# SPDX-License-Identifier: BSD-3-Clause
"""`npusim fabric`: how long a collective takes on a fabric, by every algorithm open to it."""

import argparse
import json
from dataclasses import asdict
from typing import Any

from torch_npusim._text import format_bytes, format_table
from torch_npusim.sim import fabric


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Adds the subcommand to the `npusim` command."""
    text = "print how long collectives take on a fabric of devices"
    parser: argparse.ArgumentParser = subparsers.add_parser("fabric", help=text, description=text)
    parser.add_argument("--spec", choices=fabric.names(), default="dgx-h100", help="the fabric")
    parser.add_argument("--ranks", type=_at_least_one, default=8, help="devices that take part")
    parser.add_argument("--size", type=_bytes, default=1 << 28, help="bytes, such as 256MiB")
    parser.add_argument("--operation", choices=fabric.OPERATIONS, default="all_reduce")
    parser.add_argument(
        "--per-node", type=_at_least_one, help="ranks on each node; default: as many as fit"
    )
    parser.add_argument(
        "--sharing", type=_at_least_one, default=1, help="groups that use the links at a time"
    )
    parser.add_argument(
        "--ring", action="store_true", help="print instead what a ring sends, step by step"
    )
    return parser


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def _bytes(text: str) -> int:
    for unit, factor in (("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("B", 1), ("", 1)):
        if text.endswith(unit) and text[: len(text) - len(unit)].isdigit():
            return int(text[: len(text) - len(unit)]) * factor
    raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 4096, 64KiB, 256MiB or 1GiB")


def run(arguments: argparse.Namespace) -> int:
    """Prints the ways, the cheapest first."""
    if arguments.ring:
        return _print_ring(arguments)
    routes = fabric.routes(
        arguments.spec,
        arguments.operation,
        ranks=arguments.ranks,
        size=arguments.size,
        sharing=arguments.sharing,
        per_node=arguments.per_node,
    )
    known = fabric.interval(arguments.spec)
    if arguments.json:
        ends = {"interval": known[:2] if known.times else None, "promised": known.is_promised}
        print(json.dumps([asdict(route) | ends for route in routes], indent=2))
        return 0
    print(f"{arguments.spec}: {fabric.describe(arguments.spec)}")
    print(
        f"{arguments.operation} of {format_bytes(arguments.size)} over {arguments.ranks} ranks, "
        f"{arguments.sharing} group(s) at a time\n"
    )
    rows = [
        [
            route.algorithm,
            route.protocol,
            f"{route.microseconds:.1f}",
            f"{low:.1f} to {high:.1f}" if known.times else "-",
            f"{route.bus_bandwidth:.1f}",
        ]
        for route in routes
        for low, high in [(known.low * route.microseconds, known.high * route.microseconds)]
    ]
    print("\n".join(format_table(["algorithm", "protocol", "us", "interval", "bus GB/s"], rows)))
    print(f"\n{_sentence(known)}")
    return 0


def _sentence(known: fabric.Interval) -> str:
    """Returns the sentence on the interval of a time."""
    if not known.times:
        return "No published time of this fabric is known: no interval, and no promise."
    if not known.is_promised:
        return f"The interval is the largest error of {known.times} published times: no promise."
    return (
        f"At least nine of ten published times, of {known.times} that were left out of the fit "
        f"with their machine, are within a factor of {known.high:g}."
    )


def _print_ring(arguments: argparse.Namespace) -> int:
    steps = fabric.ring(arguments.ranks)
    if arguments.json:
        print(json.dumps([[asdict(send) for send in step] for step in steps], indent=2))
        return 0
    print(
        f"all_reduce of {format_bytes(arguments.size)} in a ring of {arguments.ranks}: "
        f"{len(steps)} steps, in each of which every rank sends "
        f"{format_bytes(arguments.size // arguments.ranks)} to the next\n"
    )
    heads = ["step", *(f"rank {rank} sends" for rank in range(arguments.ranks))]
    rows = [
        [str(number), *(f"chunk {s.chunk}, {'to add' if s.adds else 'whole'}" for s in step)]
        for number, step in enumerate(steps, 1)
    ]
    print("\n".join(format_table(heads, rows)))
    return 0
