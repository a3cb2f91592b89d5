# SPDX-License-Identifier: BSD-3-Clause
"""`serve`: runs cases for a kit on another machine; what `run --remote` starts there.

Orders come as lines of stdin, or one in a file; answers are lines of a log on stdout. It ends, with
all that it started, when stdin does.
"""

import argparse
import json
import os
import select
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO

from npusim_conformance import processes

PATIENCE_SECONDS = 2.0


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Adds this subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "serve", help="run cases for a kit elsewhere (see run --remote)", description=__doc__
    )
    parser.add_argument("order", type=Path, nargs="?", metavar="FILE", help="default: stdin")
    return parser


def run(options: argparse.Namespace) -> int:
    """Serves; the exit status says only whether it could."""
    if options.order is not None:
        serve([options.order.read_text()], sys.stdout)
        return 0
    for_child, to_child = os.pipe()
    parent, child = os.getpid(), os.fork()
    if child == 0:
        try:
            os.close(to_child)
            processes.lead_session(parent)
            answers = os.fdopen(os.dup(1), "w", buffering=1)
            os.dup2(2, 1)  # nothing that a backend prints comes among the answers
            serve(os.fdopen(for_child), answers)
        except SystemExit:
            pass  # told to end, by the parent
        finally:
            os._exit(0)
    os.close(for_child)
    return _hand_on(child, to_child)


def _hand_on(child: int, to_child: int) -> int:
    """Gives orders to the child; when whoever sends them is gone, ends what works on them."""
    watched = os.pidfd_open(child)
    ready: list[int] = []
    while watched not in ready:
        ready, _, _ = select.select([0, watched], [], [])
        data = os.read(0, 1 << 16) if 0 in ready else b"?"
        if not data:
            os.kill(child, signal.SIGTERM)
            break
        if 0 in ready:
            with open(to_child, "wb", closefd=False) as pipe:
                pipe.write(data)
    return os.waitstatus_to_exitcode(processes.end(child, PATIENCE_SECONDS))


def serve(orders: Iterable[str], answers: TextIO) -> None:
    """Executes orders one after the other. An order that cannot be executed is answered, too."""
    from npusim_conformance.backend.device import DeviceUnusable
    from npusim_conformance.case import Case
    from npusim_conformance.cases import catalog
    from npusim_conformance.record.log import SCHEMA
    from npusim_conformance.remote.order import Order
    from npusim_conformance.run import environment

    def answer(record: dict[str, Any]) -> None:
        print(json.dumps(record), file=answers, flush=True)

    for line in orders:
        try:
            order = Order.from_line(line)
            config = order.config
            selection = {"cases": len(order.names)}
            answer({"schema": SCHEMA, **environment.describe(config, selection, None)})
            for name in order.names:  # loaded once, workers are forked from here
                catalog.resolve(Case.parse(name))
            runner = order.runner()
            for outcome in runner.run(order.names):
                answer(outcome.to_json())
            answer({"traps": list(runner.traps)})
        except (DeviceUnusable, ValueError, KeyError) as error:
            answer({"unusable": str(error)})
        answer({"done": True})
