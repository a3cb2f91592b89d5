# SPDX-License-Identifier: BSD-3-Clause
"""A dry run's memory is that of the real run: peaks, and where every tensor lies."""

import json

import pytest
from processes import python
from profiling import memory_programs
from profiling.memory_programs import MOVED, PROGRAMS, WITH_TEMPORARIES


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Program -> "real" and "dry" -> peaks and events, of one process for all of them."""
    file = tmp_path_factory.mktemp("memory") / "measured.json"
    done = python(memory_programs.__file__, file, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(file.read_text())


def runs_within(few, many):
    """Whether `few` are left of `many` when some of these are struck out."""
    rest = iter(many)
    return all(event in rest for event in few)


@pytest.mark.parametrize("name", PROGRAMS)
def test_peaks_and_placements_are_those_of_the_real_run(name, measured):
    peaks, events = measured[name]["real"]
    dry_peaks, dry_events = measured[name]["dry"]
    assert dry_peaks == peaks
    assert len(dry_events) > 20
    # Temporaries of the CPU's kernels are struck out.
    assert runs_within(dry_events, events) or name in MOVED


@pytest.mark.parametrize("name", WITH_TEMPORARIES)
def test_temporaries_of_the_hosts_libraries_are_not_in_a_dry_run(name, measured):
    (allocated, reserved), _ = measured[name]["real"]
    (dry_allocated, dry_reserved), _ = measured[name]["dry"]
    assert dry_allocated < allocated
    assert dry_reserved == reserved
