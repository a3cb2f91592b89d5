# SPDX-License-Identifier: BSD-3-Clause
"""Exit statuses of the command."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npusim_conformance.record.summary import Summary

EXIT_OK = 0  # all as expected
EXIT_FAILURES = 1  # unexpected failures, or unexpected passes
EXIT_USAGE = 2  # a wrong command line, log or expectations file
EXIT_UNUSABLE = 3  # the device cannot be tested
EXIT_UNWRITABLE = 4  # the log or a report cannot be written
EXIT_NOTHING_EXECUTED = 5
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


def exit_status(summary: "Summary") -> int:
    """The exit status that says what came of a run."""
    statuses = {"passed": EXIT_OK, "failed": EXIT_FAILURES, "empty": EXIT_NOTHING_EXECUTED}
    return statuses[summary.result]
