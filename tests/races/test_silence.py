# SPDX-License-Identifier: BSD-3-Clause
"""No false alarm: tests of other subjects pass where every race is an error (`make races`: all)."""

from processes import python
from repo.sources import ROOT

SAMPLE = [
    "tests/test_tiny.py",
    "tests/api/test_streams.py",
    "tests/api/test_pinned.py",
    "tests/api/test_memory_pools.py",
    "tests/ops/test_devices.py",
    "tests/ops/test_copy.py",
]


def test_a_sample_of_the_tests_is_silent():
    finished = python(
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *SAMPLE,
        variables={"NPUSIM_RACES": "error"},
        timeout=600,
        cwd=ROOT,
    )
    assert finished.returncode == 0, finished.stdout[-4000:]
