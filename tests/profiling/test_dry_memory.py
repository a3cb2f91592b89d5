# SPDX-License-Identifier: BSD-3-Clause
"""A dry run's memory is that of the real run: peaks, and every allocation with its address."""

import json

import pytest
from processes import python
from profiling import memory_programs
from profiling.memory_programs import PROGRAMS


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Program -> "real" and "dry" -> peaks and events, of one process for all of them."""
    file = tmp_path_factory.mktemp("memory") / "measured.json"
    done = python(memory_programs.__file__, file, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(file.read_text())


@pytest.mark.parametrize("name", PROGRAMS)
def test_peaks_and_placements_are_those_of_the_real_run(name, measured):
    """Rule M13: what a real run's kernels take beside their results is no memory of the device."""
    peaks, events = measured[name]["real"]
    dry_peaks, dry_events = measured[name]["dry"]
    assert dry_peaks == peaks
    assert len(dry_events) > 20
    assert dry_events == events
