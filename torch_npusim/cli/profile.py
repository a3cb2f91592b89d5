# SPDX-License-Identifier: BSD-3-Clause
"""`npusim profile script.py`: runs a script and says where the time of the device goes."""

import argparse
import contextlib
import json
import sys
import traceback
from pathlib import Path
from typing import Any

from torch_npusim import npusim
from torch_npusim.cli.fit import begin_again
from torch_npusim.sim import dry, specs

_TEXT = "run a script, unmodified, and say where the time of the device goes and what would help"


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Adds the subcommand to the `npusim` command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "profile", help=_TEXT, description=f"{_TEXT}. Options come before the script."
    )
    parser.add_argument(
        "--spec", help="the device to simulate: a name of `npusim specs`, or a file"
    )
    parser.add_argument(
        "--host",
        default="eager",
        help=f"what a command costs the host: {', '.join(specs.host_names())}, a file of `npusim "
        "calibrate-host`, or microseconds; default: eager, the host of the published figures; "
        "spec: the launch alone",
    )
    parser.add_argument(
        "--as-cuda", action="store_true", help='a script that says "cuda" runs on npusim'
    )
    parser.add_argument(
        "--dry",
        action="store_true",
        help="without numbers and memory, with CUDA's choice of attention and its temporaries",
    )
    parser.add_argument("--html", metavar="FILE", help="write one self-contained page")
    parser.add_argument("--out", metavar="FILE", help="write the JSON report")
    parser.add_argument(
        "--compare", nargs=2, metavar=("BEFORE", "AFTER"), help="compare two JSON reports"
    )
    parser.add_argument(
        "--max-step-ms",
        type=float,
        help="fail if a step takes longer, in virtual time, which is the same in every run",
    )
    parser.add_argument("--wall", action="store_true", help="count loaders in --max-step-ms too")
    parser.add_argument(
        "--loader-scale",
        type=float,
        default=1.0,
        help="what waits for data loaders are multiplied with: they are wall time of this machine",
    )
    parser.add_argument("script", nargs="?")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Prints the report; fails where a step takes longer than it may."""
    from torch_npusim.profiling import _page

    if arguments.compare:
        before, after = (json.loads(Path(name).read_text()) for name in arguments.compare)
        print(_page.compare(before, after))
        return 0
    if arguments.script is None:
        print("npusim profile: name a script, or two reports after --compare", file=sys.stderr)
        return 2
    if not Path(arguments.script).is_file():
        print(f"npusim profile: there is no script {arguments.script}", file=sys.stderr)
        return 2
    wanted = {"NPUSIM_SPEC": arguments.spec, "NPUSIM_AS_CUDA": "1" if arguments.as_cuda else None}
    begin_again({name: value for name, value in wanted.items() if value})
    return _profile(arguments)


def _profile(arguments: argparse.Namespace) -> int:
    from torch_npusim.fit.text import answers_text
    from torch_npusim.profiling import _page, diagnose, record_script

    try:
        host = specs.use_host(arguments.host)
    except ValueError as problem:
        print(f"npusim profile: {problem}", file=sys.stderr)
        return 2
    run = None
    try:
        with contextlib.ExitStack() as stack:
            if arguments.dry:
                run = stack.enter_context(dry.dry_run(temporaries="cuda"))
            recording = record_script(arguments.script, arguments.arguments)
    except Exception as error:
        # As `python script.py` shows it: from the script's own line on.
        calls = error.__traceback__
        while calls and calls.tb_frame.f_code.co_filename != arguments.script:
            calls = calls.tb_next
        traceback.print_exception(error.with_traceback(calls or error.__traceback__))
        return 1
    found = diagnose(
        recording,
        device=npusim.get_device_name(),
        host=host,
        loader_scale=arguments.loader_scale,
    )
    if arguments.html:
        assert recording.timeline.rates is not None
        Path(arguments.html).write_text(_page.as_page(found, recording.timeline.rates))
    if arguments.out:
        Path(arguments.out).write_text(_page.as_json(found))
    print(_page.as_json(found) if arguments.json else _page.as_text(found))
    if run is not None and not arguments.json:
        print("\n".join(answers_text(run.answers())))
    if arguments.max_step_ms is None:
        return 0
    step_ns = found.step_ns
    if arguments.wall:
        step_ns += found.loader_ns // max(found.steps, 1)
    if step_ns <= arguments.max_step_ms * 1e6:
        return 0
    print(
        f"npusim profile: a step takes {step_ns / 1e6:.3f} ms, more than the "
        f"{arguments.max_step_ms:g} ms that it may",
        file=sys.stderr,
    )
    return 1
