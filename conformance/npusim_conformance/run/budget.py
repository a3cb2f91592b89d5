# SPDX-License-Identifier: BSD-3-Clause
"""A limit on the time of a whole run."""

import re
import time
from dataclasses import dataclass

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
RETRIES_SHARE = 0.1  # of the time is for trying failures again


@dataclass(frozen=True)
class Budget:
    """So many seconds, which began when this was made; `text` is how they were asked for."""

    text: str
    seconds: float
    ends_at: float  # time.monotonic()

    @staticmethod
    def parse(text: str) -> "Budget":
        """Parses "20m", "90s", "1h30m" or a number of seconds. Raises ValueError."""
        parts = re.findall(r"(\d+(?:\.\d+)?)([smh]?)", text)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            raise ValueError(f"{text!r}; expected a time, as in 20m, 90s or 1h30m")
        return Budget.of(text, sum(float(number) * _UNITS[unit or "s"] for number, unit in parts))

    @staticmethod
    def of(text: str, seconds: float) -> "Budget":
        """So many seconds from now."""
        return Budget(text, seconds, time.monotonic() + seconds)

    @property
    def first_ends_at(self) -> float:
        """When no case is begun for the first time any more."""
        return self.ends_at - RETRIES_SHARE * self.seconds

    @property
    def reason(self) -> str:
        """Why a case was not run."""
        return f"the time budget of {self.text} was spent"
