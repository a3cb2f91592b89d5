# SPDX-License-Identifier: BSD-3-Clause
"""Variables of the environment that look like ours and are not: a typing error changes nothing."""

import difflib
import os

from torch_npusim import _C
from torch_npusim_common.loading import report

# Those of the project's own tests and builds, which are not read here.
ELSEWHERE = frozenset(
    {
        "NPUSIM_ACCEPT_SURFACE",
        "NPUSIM_FUZZ_SECONDS",
        "NPUSIM_SEARCH_PROGRAMS",
        "NPUSIM_SEARCH_SEED",
        "NPUSIM_STRESS_SECONDS",
        "NPUSIM_TESTS",
        "NPUSIM_TEST_PART",
        "NPUSIM_TEST_SECONDS",
        "NPUSIM_TESTS_ALONE",
    }
)


def unknown_variables() -> dict[str, str]:
    """Returns the unknown NPUSIM_* variables that are set, and the known one nearest to each."""
    known = [knob["name"] for knob in _C.knobs()]
    found = {}
    for name in sorted(os.environ):
        if name.startswith("NPUSIM_") and name not in known and name not in ELSEWHERE:
            found[name] = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
    return found


def warn_of_unknown_variables() -> None:
    """Warns of each variable that has no effect."""
    for name, nearest in unknown_variables().items():
        report(
            f"{name} is set, and torch_npusim knows no such variable: it has no effect. The "
            f"nearest name is {nearest}; `npusim env` lists all"
        )
