# SPDX-License-Identifier: BSD-3-Clause
"""A session: cases go to an executor, their outcomes go into the log as they come."""

import sys
import time
from collections.abc import Iterable
from typing import Any, Protocol

from tqdm import tqdm

from npusim_conformance.backend.expectations import Expectations
from npusim_conformance.record.log import LogWriter, RunRecord
from npusim_conformance.record.summary import Tally
from npusim_conformance.run.runner import Runner
from npusim_conformance.verdict import Outcome, Status


class Executes(Protocol):
    """Executes cases: Runner here, Remote and OnExecutor elsewhere, Fuzzer in forked children."""

    traps: tuple[str, ...]  # known after run()

    def machine(self) -> dict[str, Any]:
        """The entries of environment.machine() that differ where the cases are executed."""

    def run(self, names: Iterable[str], before: Iterable[Outcome] = ()) -> Iterable[Outcome]:
        """Outcomes as they come; `before` are those of a run that was cut off."""


def recorded(
    executor: Executes,
    names: list[str],
    log: LogWriter,
    expectations: Expectations,
    quiet: bool = False,
) -> RunRecord:
    """Executes the cases that the log lacks, shows progress on stderr, and returns the record.

    The line is drawn while no outcome comes, too: with the time, and with what a Runner does.
    """
    tqdm.monitor_interval = 0  # no thread: workers are forked from here
    done = log.record.outcomes
    left = [name for name in names if name not in done or done[name].status is Status.NOT_RUN]
    is_terminal = sys.stderr.isatty()
    interval = 0.5 if is_terminal else 10.0
    with tqdm(
        total=len(names),
        initial=len(names) - len(left),
        unit=" cases",
        disable=quiet,
        mininterval=interval,
        ascii=not is_terminal,
    ) as progress:
        tally = Tally(expectations)
        shown = time.monotonic()

        def stands(phase: str) -> None:
            """Draws the line of a bar that stands: it shows its time, and what is done."""
            nonlocal shown
            if time.monotonic() > shown + interval:
                shown = time.monotonic()
                progress.set_description_str(phase)

        if isinstance(executor, Runner):
            executor.on_tick = stands
        for outcome in executor.run(left, list(done.values())):
            log.add(outcome)
            tally.add(outcome)
            progress.set_postfix_str(tally.short(), refresh=False)
            if outcome.attempt == 1:
                progress.update()
            else:
                stands("failures again")
    if executor.traps:
        log.add_traps(executor.traps)
    return log.record
