# SPDX-License-Identifier: BSD-3-Clause
"""The `npusim-conformance` command: one file per subcommand, each with add_parser() and run().

Exit status: 0 all as expected; 1 unexpected failures; 2 a wrong command line or expectations file;
3 the device cannot be tested; 4 the log or a report cannot be written; 5 nothing was executed;
130 interrupted (Ctrl-C), 143 terminated.
"""

import argparse
import importlib
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from npusim_conformance import __version__

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from npusim_conformance.summary import Summary

SUBCOMMANDS = (
    "run",
    "list",
    "upstream",
    "fuzz",
    "report",
    "compare",
    "merge",
    "serve",
    "repro",
    "expect",
    "plan",
    "census",
    "selfcheck",
)

EXIT_OK = 0
EXIT_FAILURES = 1
EXIT_USAGE = 2
EXIT_UNUSABLE = 3
EXIT_UNWRITABLE = 4
EXIT_NOTHING_EXECUTED = 5
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


def main(arguments: Sequence[str] | None = None, executor: "Executor | None" = None) -> int:
    """Runs the subcommand that `arguments` (default: the command line) name.

    `run` has its cases executed by `executor`, where one is given, as by --executor.
    """
    # Workers load the backend, by name, after they were forked; torch must not do it before.
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    parser = argparse.ArgumentParser(
        prog="npusim-conformance",
        description="What works on a PyTorch device, what does not, and why.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for name in SUBCOMMANDS:
        module = importlib.import_module(f"npusim_conformance.cli.{name.replace('-', '_')}")
        module.add_parser(subparsers).set_defaults(run=module.run)
    chosen = parser.parse_args(arguments)
    if executor is not None:
        chosen.executor = executor
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminate)
    try:
        status: int = chosen.run(chosen)
    except KeyboardInterrupt:
        print("interrupted; --resume goes on from here", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    except _user_errors() as error:
        print(f"npusim-conformance: {error}", file=sys.stderr)
        return EXIT_USAGE
    except _device_errors() as error:
        print(f"npusim-conformance: {error}", file=sys.stderr)
        return EXIT_UNUSABLE
    except OSError as error:
        print(f"npusim-conformance: cannot write: {error}; --resume goes on", file=sys.stderr)
        return EXIT_UNWRITABLE
    return status


def _terminate(number: int, frame: object) -> None:
    """Ends as Ctrl-C does: workers are ended on the way."""
    del number, frame
    sys.exit(EXIT_TERMINATED)


def exit_status(summary: "Summary") -> int:
    """The exit status that says what came of a run."""
    statuses = {"passed": EXIT_OK, "failed": EXIT_FAILURES, "empty": EXIT_NOTHING_EXECUTED}
    return statuses[summary.result]


def _user_errors() -> tuple[type[Exception], ...]:
    from npusim_conformance.catalog import UnknownCase
    from npusim_conformance.expectations import ExpectationsError
    from npusim_conformance.log import LogError

    return (ExpectationsError, LogError, UnknownCase, FileNotFoundError, PermissionError)


def _device_errors() -> tuple[type[Exception], ...]:
    from npusim_conformance.device import DeviceUnusable

    return (DeviceUnusable,)
