# SPDX-License-Identifier: BSD-3-Clause
"""The choice of cases on a command line, in plain values. torch is not needed to make one."""

from dataclasses import asdict, dataclass
from typing import Any

from npusim_conformance.case import SAMPLES_MAX

PROFILES = tuple(SAMPLES_MAX)


@dataclass(frozen=True)
class Selection:
    """Globs are comma-separated, a leading ~ excludes; an empty text chooses everything."""

    profile: str = "standard"
    subjects: str = ""  # operators, modules ..., as "linalg.*" or "op:add"
    properties: str = ""
    dtypes: str = ""
    families: str = ""  # or kinds
    shard: tuple[int, int] = (1, 1)  # this one, of so many
    samples_max: int | None = None  # None: the profile's

    def to_json(self) -> dict[str, Any]:
        """For the head of a log."""
        return {**asdict(self), "shard": list(self.shard)}

    def samples(self) -> int | None:
        """The most samples of one case."""
        return SAMPLES_MAX[self.profile] if self.samples_max is None else self.samples_max
