# SPDX-License-Identifier: BSD-3-Clause
"""Work for another machine: cases and all that decides how they are run, as one line of JSON.

The machine that has the device needs Python, torch and this kit: `npusim-conformance serve` there
reads orders and answers with the lines of a log, a head first, then `{"done": true}`.
"""

import json
import os
from dataclasses import asdict, dataclass
from typing import Self

from npusim_conformance import __version__
from npusim_conformance.backend.device import DeviceUnusable
from npusim_conformance.backend.expectations import parse
from npusim_conformance.run.budget import Budget
from npusim_conformance.run.runner import LOAD_SECONDS, Runner
from npusim_conformance.run.worker import WorkerConfig


@dataclass(frozen=True)
class Order:
    """Cases with their WorkerConfig, and how many workers run them; None: as many as fit there."""

    config: WorkerConfig
    names: tuple[str, ...]
    jobs: int | None = None
    timeout_seconds: float = 60.0
    isolation: str = "fork"
    load_seconds: float = LOAD_SECONDS
    budget_text: str = ""  # of a time budget; empty: none
    budget_seconds: float = 0.0  # what is left of it

    @property
    def silence_seconds(self) -> float:
        """Within this time something comes back, unless there is nobody any more."""
        return self.timeout_seconds + self.config.warm_up_seconds + 2 * self.load_seconds

    def to_line(self) -> str:
        """One line of JSON."""
        record = asdict(self)
        record["config"]["expectations"] = self.config.expectations.to_data()
        return json.dumps({"kit": __version__, **record})

    @classmethod
    def from_line(cls, line: str) -> Self:
        """The inverse of to_line(). Raises DeviceUnusable for what another version wrote."""
        record = json.loads(line)
        kit = record.pop("kit", "none")
        if kit != __version__:
            raise DeviceUnusable(f"the order is of npusim-conformance {kit}, here is {__version__}")
        record["names"] = tuple(record["names"])
        config = record["config"]
        config["expectations"] = parse(config["expectations"], "the order's expectations")
        record["config"] = WorkerConfig(**config)
        return cls(**record)

    def runner(self, budget: Budget | None = None) -> Runner:
        """The Runner of the order on this machine, within a budget or the order's own."""
        jobs = self.jobs or len(os.sched_getaffinity(0))
        if self.budget_text:
            budget = Budget.of(self.budget_text, self.budget_seconds)
        return Runner(
            self.config, jobs, self.timeout_seconds, self.isolation, self.load_seconds, budget
        )
