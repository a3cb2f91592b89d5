# SPDX-License-Identifier: BSD-3-Clause
"""`census`: what torch's dispatcher holds for a device, overload by overload.

Nothing is executed: this is what was registered. `run` tells what works.
"""

import argparse
import json
from typing import TYPE_CHECKING, Any

from npusim_conformance.cli import options as shared

if TYPE_CHECKING:
    from npusim_conformance.backend.census import Census

ROUTES = ("native", "boxed", "composite", "fallback", "missing")


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Adds this subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "census", help="what the dispatcher holds for a device", description=__doc__
    )
    shared.add_device(parser)
    parser.add_argument("--list", choices=ROUTES, help="the overloads on this route")
    parser.add_argument("--json", action="store_true", help="everything, as JSON")
    return parser


def run(options: argparse.Namespace) -> int:
    """Prints counts and open traps, or a list, or all as JSON."""
    from npusim_conformance.backend.census import Route

    census = census_of(options)
    if options.json:
        print(json.dumps(_to_json(census), indent=1))
    elif options.list:
        print("\n".join(census.of(Route[options.list.upper()])))
    else:
        print(_text(census))
    return 0


def census_of(options: argparse.Namespace) -> "Census":
    """Loads the device that the options name, and reads the dispatcher."""
    from npusim_conformance.backend import census
    from npusim_conformance.backend.device import DeviceUnderTest

    declared = shared.expectations_of(options)
    under_test = DeviceUnderTest(options.device, declared.import_name, declared)
    return census.take(under_test.device)


def _to_json(census: "Census") -> dict[str, Any]:
    from npusim_conformance.backend.census import Route

    return {
        "device": census.device,
        "key": census.key,
        "counts": {route.value: len(census.of(route)) for route in Route},
        "overloads": {route.value: census.of(route) for route in Route},
        "autograd": list(census.autograd),
        "autocast": list(census.autocast),
        "traps": [
            {"name": trap.name, "open": trap.open, "hint": trap.hint} for trap in census.traps
        ],
    }


def _text(census: "Census") -> str:
    from npusim_conformance.backend.census import Route

    lines = [f"{census.device}, dispatch key {census.key}: {len(census.routes)} aten overloads"]
    lines += [f"{len(census.of(route)):6} {route.value}" for route in Route]
    lines.append(f"{len(census.autograd):6} with autograd of the backend's own")
    lines.append(f"{len(census.autocast):6} with a rule for autocast")
    for trap in census.traps:
        if trap.open:
            lines.append(f"trap: {trap.name}: {trap.hint}")
    if census.traps:
        done = sum(not trap.open for trap in census.traps)
        lines.append(f"{done} of {len(census.traps)} known traps avoided")
    return "\n".join(lines)
