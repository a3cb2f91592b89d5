# SPDX-License-Identifier: BSD-3-Clause
"""A dry run's memory is that of the real run: peaks, and where every tensor lies."""

import gc

import pytest
import torch
from profiling.memory_programs import MOVED, PROGRAMS, WITH_TEMPORARIES

from torch_npusim.sim import dry_run


def release():
    gc.collect()
    torch.npusim.empty_cache()
    assert torch.npusim.memory_reserved() == 0, "tensors are alive, of an earlier test perhaps"


def measured(program):
    """Peaks, and allocations and frees as (action, address, bytes)."""
    release()
    torch.npusim.reset_peak_memory_stats()
    torch.npusim.memory._record_memory_history(stacks="python", max_entries=1 << 20)
    gc.disable()  # tensors in cycles would go at another moment
    try:
        program()
    finally:
        gc.enable()
    stats = torch.npusim.memory_stats()
    (trace, *_) = torch.npusim.memory._snapshot()["device_traces"]
    torch.npusim.memory._record_memory_history(enabled=None)
    release()
    peaks = [stats[f"{what}_bytes.all.peak"] for what in ("allocated", "reserved")]
    events = [(entry["action"], entry["addr"], entry["size"]) for entry in trace]
    return peaks, [event for event in events if event[0] in ("alloc", "free_requested")]


def runs_within(few, many):
    """Whether `few` are left of `many` when some of these are struck out."""
    rest = iter(many)
    return all(event in rest for event in few)


@pytest.mark.parametrize("name", PROGRAMS)
def test_peaks_and_placements_are_those_of_the_real_run(name):
    peaks, events = measured(PROGRAMS[name])
    with dry_run():
        dry_peaks, dry_events = measured(PROGRAMS[name])
    assert dry_peaks == peaks
    assert len(dry_events) > 20
    # What is struck out are temporaries of the CPU's kernels.
    assert runs_within(dry_events, events) or name in MOVED


@pytest.mark.parametrize("name", WITH_TEMPORARIES)
def test_temporaries_of_the_hosts_libraries_are_not_in_a_dry_run(name):
    program, _ = WITH_TEMPORARIES[name]
    (allocated, reserved), _ = measured(program)
    with dry_run():
        (dry_allocated, dry_reserved), _ = measured(program)
    assert dry_allocated < allocated
    assert dry_reserved == reserved
