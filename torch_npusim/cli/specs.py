# SPDX-License-Identifier: BSD-3-Clause
"""`npusim specs`: the devices that can be simulated, and where their numbers are from."""

import argparse
import json
from dataclasses import asdict
from typing import Any

from torch_npusim._text import format_table
from torch_npusim.sim import specs


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Adds the subcommand to the `npusim` command."""
    text = (
        "list the devices that NPUSIM_SPEC can name, or one of them with the source of each number"
    )
    parser: argparse.ArgumentParser = subparsers.add_parser("specs", help=text, description=text)
    parser.add_argument("name", nargs="?", help="a name of the list, or a .toml file to check")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Prints the table; fails for a specification that cannot be used."""
    if arguments.name is not None and arguments.name not in specs.BUILT_IN:
        try:
            spec = specs.load(arguments.name)
        except specs.SpecError as error:
            print(f"npusim specs: {error}")
            return 1
        print(json.dumps(asdict(spec), indent=2) if arguments.json else one(spec))
        return 0
    found = [specs.load(name) for name in specs.names() if name not in specs.BUILT_IN]
    print(json.dumps([asdict(s) for s in found], indent=2) if arguments.json else many(found))
    return 0


def one(spec: specs.Spec) -> str:
    """Returns all numbers of a specification, with their sources."""
    rows = [
        [key, f"{value:g}", spec.sources.get(key, "default")] for key, value in spec.numbers.items()
    ]
    return "\n".join([spec.title, "", *format_table(["number", "value", "source"], rows)])


def many(found: list[specs.Spec]) -> str:
    """Returns a line for each specification."""
    rows = [[name, "made up; needs no file", "", "", "", ""] for name in specs.BUILT_IN]
    for spec in found:
        rows.append(
            [
                spec.name,
                spec.title,
                f"{spec.numbers['memory.capacity_gib']:g} GiB",
                f"{spec.numbers['memory.bandwidth_gb_s']:g} GB/s",
                f"{spec.numbers['peak_tflops.f32']:g}",
                f"{spec.numbers['peak_tflops.f16']:g}",
            ]
        )
    header = ["NPUSIM_SPEC", "device", "memory", "bandwidth", "f32 TFLOP/s", "f16 TFLOP/s"]
    hosts = [
        [name, host.title, f"{host.dispatch_us:g} us"]
        for name in specs.host_names()
        for host in [specs.load_host(name)]
    ]
    return "\n".join(
        [
            *format_table(header, rows),
            "",
            *format_table(["--host", "host of eager Python", "for a command"], hosts),
        ]
    )
