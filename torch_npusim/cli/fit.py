# SPDX-License-Identifier: BSD-3-Clause
"""`npusim fit script.py`: whether a script's memory fits a device, without running its numbers."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_npusim.profiling._fit import DeviceFit, Fit

_TEXT = "run a script dry and say whether its memory fits the device, and what the peak is"
_SETTINGS = {
    "spec": "NPUSIM_SPEC",
    "memory": "NPUSIM_DEVICE_MEMORY",
    "allocator": "NPUSIM_ALLOCATOR",
}
_GIB = 1 << 30


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Adds the subcommand to the `npusim` command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "fit", help=_TEXT, description=f"{_TEXT}. Options come before the script."
    )
    parser.add_argument(
        "--spec", help="the device to simulate: a name of `npusim specs`, or a file"
    )
    parser.add_argument("--memory", help="its capacity, such as 24GiB, if not the specification's")
    parser.add_argument(
        "--allocator", default="cuda-2.13", help="as NPUSIM_ALLOCATOR; default: %(default)s"
    )
    parser.add_argument(
        "--selected", type=float, default=0.5, help="share of elements that masks select"
    )
    parser.add_argument(
        "--require-fits", action="store_true", help="fail if the script runs out of memory"
    )
    parser.add_argument("--max-peak", help="fail if more is reserved on a device, such as 70GiB")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Prints the answer; fails if a requirement is not met, or the script ends with an error."""
    if not Path(arguments.script).is_file():
        print(f"npusim fit: there is no script {arguments.script}", file=sys.stderr)
        return 2
    wanted = {
        variable: getattr(arguments, option)
        for option, variable in _SETTINGS.items()
        if getattr(arguments, option)
    }
    if any(os.environ.get(variable) != value for variable, value in wanted.items()):
        # A device is what it is from its first use on: begin again with another environment.
        os.environ.update(wanted)
        os.execv(sys.executable, [sys.executable, "-m", "torch_npusim.cli", *sys.argv[1:]])
    from torch_npusim.profiling._fit import fit_script
    from torch_npusim_entry_points.byte_sizes import parse_bytes

    try:
        limit = parse_bytes(arguments.max_peak) if arguments.max_peak else None
    except ValueError as error:
        print(f"npusim fit: --max-peak: {error}", file=sys.stderr)
        return 2
    fit = fit_script(arguments.script, arguments.arguments, arguments.selected)
    print(json.dumps(fit.as_dict(), indent=1) if arguments.json else _text(fit))
    if fit.error or (arguments.require_fits and not fit.fits):
        return 1
    peak = max((device.peak_reserved for device in fit.devices.values()), default=0)
    if limit is not None and peak > limit:
        print(
            f"npusim fit: {peak / _GIB:.2f} GiB are reserved, more than the {limit / _GIB:.2f} GiB "
            f"that may be",
            file=sys.stderr,
        )
        return 1
    return 0


def _text(fit: "Fit") -> str:
    lines = [f"{fit.script}: {'fits' if fit.fits else 'does not fit'}"]
    if not fit.fits:
        lines.append(f"  {fit.reason.splitlines()[0]}")
    if fit.error:
        lines = [f"{fit.script}: ended early, with {fit.error}", "Until then:"]
    for number, device in fit.devices.items():
        lines += _device_text(number, device)
    if fit.answers:
        lines.append("Values that the script asked for, which a dry run does not have:")
        for answer in fit.answers:
            lines.append(
                f"  {answer.count:6} x {answer.operator} answered {answer.answer:g} {answer.what} "
                f"at {answer.place}"
            )
    return "\n".join(lines)


def _device_text(number: int, device: "DeviceFit") -> list[str]:
    lines = [
        f"npusim:{number}, {device.capacity / _GIB:.2f} GiB: at most "
        f"{device.peak_allocated / _GIB:.3f} GiB allocated, {device.peak_reserved / _GIB:.3f} GiB "
        f"reserved; without CUDA's own temporaries, its context and NCCL's buffers",
        f"  the peak is reached at {device.peak_line}, with",
    ]
    lines += [f"  {held / _GIB:10.3f} GiB of {kind}" for kind, held in device.at_peak.items()]
    lines.append("  made at")
    lines += [f"  {held / _GIB:10.3f} GiB {line}" for line, held in device.lines.items()]
    return lines
