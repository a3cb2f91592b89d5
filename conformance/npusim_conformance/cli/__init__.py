# SPDX-License-Identifier: BSD-3-Clause
"""The `npusim-conformance` command: one file per subcommand, each with add_parser() and run().

status.py has the exit statuses, options.py the options that several subcommands share.
"""

import argparse
import gc
import importlib
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from npusim_conformance import __version__
from npusim_conformance.cli.status import (
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_TERMINATED,
    EXIT_UNUSABLE,
    EXIT_UNWRITABLE,
    EXIT_USAGE,
)

if TYPE_CHECKING:
    from concurrent.futures import Executor


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
    "new-backend",
)


def main(arguments: Sequence[str] | None = None, executor: "Executor | None" = None) -> int:
    """Runs the subcommand that `arguments` (default: the command line) name.

    `run` has its cases executed by `executor`, where one is given, as by --executor.
    """
    # Workers load the backend, by name, after they were forked; torch must not do it before.
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    gc.set_threshold(50_000, 20, 100)  # what is imported stays; collections would look at it often
    chosen = parser().parse_args(arguments)
    if executor is not None:
        chosen.executor = executor
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminate)
    try:
        status: int = chosen.run(chosen)
    except KeyboardInterrupt:
        print("interrupted; --resume continues from here", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of the output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    except _user_errors() as error:
        print(f"npusim-conformance: {error}", file=sys.stderr)
        return EXIT_USAGE
    except _device_errors() as error:
        print(f"npusim-conformance: {error}", file=sys.stderr)
        return EXIT_UNUSABLE
    except OSError as error:
        print(f"npusim-conformance: cannot write: {error}; --resume continues", file=sys.stderr)
        return EXIT_UNWRITABLE
    return status


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    made = argparse.ArgumentParser(
        prog="npusim-conformance",
        description="Tests a PyTorch device: the working parts, the broken parts, and why.",
    )
    made.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    subparsers = made.add_subparsers(required=True, metavar="COMMAND")
    for name in SUBCOMMANDS:
        module = importlib.import_module(f"npusim_conformance.cli.{name.replace('-', '_')}")
        module.add_parser(subparsers).set_defaults(run=module.run)
    return made


def _terminate(number: int, frame: object) -> None:
    """Ends as Ctrl-C does: workers are ended on the way."""
    del number, frame
    sys.exit(EXIT_TERMINATED)


def _user_errors() -> tuple[type[Exception], ...]:
    from npusim_conformance.backend.expectations import ExpectationsError
    from npusim_conformance.cases.catalog import UnknownCase
    from npusim_conformance.record.log import LogError

    return (ExpectationsError, LogError, UnknownCase, FileNotFoundError, PermissionError)


def _device_errors() -> tuple[type[Exception], ...]:
    from npusim_conformance.backend.device import DeviceUnusable

    return (DeviceUnusable,)
