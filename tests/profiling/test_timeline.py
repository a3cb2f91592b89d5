# SPDX-License-Identifier: BSD-3-Clause
"""torch_npusim.sim.timeline: rows whose replay is the device's own clock."""

import dataclasses

import pytest
import torch
from profiling.programs import PROGRAMS, tiny_operators

from torch_npusim.profiling import diagnose, record
from torch_npusim.sim import clock, faults, races, timeline

DEVICE = "npusim"


def recorded(program):
    with timeline.record() as made:
        program()
    return made


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_replay_is_the_clock_of_the_device(program):
    made = recorded(program)
    again = made.replay()
    assert made.commands()
    assert made.dropped == 0
    assert made.begin_ns + again.host_ns == made.end_ns == clock.host_time_ns()
    assert again.span_ns == made.span_ns
    times = [(row.start_ns - made.begin_ns, row.end_ns - made.begin_ns) for row in made.commands()]
    assert again.commands == times


def test_there_are_twenty_programs():
    assert len(PROGRAMS) >= 20


def times(made):
    """The rows of a recording as if its clock had begun at 0."""
    return [
        (row.kind, row.name, row.host_ns - made.begin_ns)
        + (row.start_ns - made.begin_ns, row.end_ns - made.begin_ns) * row.is_command
        for row in made.rows
    ]


def backlog():
    """Long work that nobody waits for, on two streams and two devices."""
    streams = [torch.npusim.default_stream(i) for i in (0, 1)] + [torch.npusim.Stream()]
    for stream in streams:
        with torch.npusim.stream(stream), faults.inject("slow", nth=1, factor=1e6):
            torch.ones(8, device=stream.device)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_recording_after_a_warm_up_equals_one_without(program):
    program()
    backlog()
    torch.npusim.synchronize(1)
    torch.npusim.synchronize()
    idle = recorded(program)
    backlog()
    assert clock.stream_time_ns() > clock.host_time_ns() + 1_000_000
    busy = recorded(program)
    assert busy.span_ns == idle.span_ns
    assert times(busy) == times(idle)


def test_what_a_profile_sums_up_has_no_backlog_either():
    a = torch.ones(512, 512, device=DEVICE)
    spans = []
    for warm_up in (0, 12):
        torch.npusim.synchronize()
        for _ in range(warm_up):
            a @ a
        with record() as made:
            for _ in range(4):
                a @ a
        spans.append(diagnose(made).span_ns)
    assert spans[0] == spans[1]


def test_the_begin_of_a_recording_orders_nothing_and_reports_no_fault():
    x = torch.ones(64, device=DEVICE)
    side = torch.npusim.Stream()
    side.wait_stream(torch.npusim.current_stream())
    faults.arm("launch", nth=1)
    x.add_(1)
    with races.record() as found, timeline.record(), torch.npusim.stream(side):
        pass
    with races.record() as found:
        x.fill_(1)
        with timeline.record(), torch.npusim.stream(side):
            x.sum()
    assert [race.missing for race in found.races] == ["wait_stream"]
    with pytest.raises(RuntimeError, match="fault"):
        torch.npusim.synchronize()
    faults.clear()


def test_a_hang_takes_as_long_in_the_replay():
    x = torch.ones(8, device=DEVICE)
    faults.arm("hang", nth=1)

    def program():
        x + 1
        with pytest.raises(RuntimeError):
            torch.npusim.synchronize()

    made = recorded(program)
    faults.clear()
    assert made.replay().span_ns == made.span_ns > 1_000_000_000


def test_free_launches_take_the_latency_of_each_command_away():
    made = recorded(tiny_operators)
    latency = made.rates.launch_latency_ns
    assert made.replay().host_ns == len(made.commands()) * latency
    assert made.replay(launches_free=True).host_ns == 0
    assert made.replay(launches_free=True).span_ns < made.span_ns


def test_infinite_bandwidth_leaves_the_floors():
    x = torch.ones(1 << 20, device=DEVICE)
    made = recorded(lambda: x + 1)
    ((start, end),) = made.replay(bandwidth_infinite=True, arithmetic_infinite=True).commands
    assert end - start == made.rates.kernel_floor_ns


def test_pageable_copies_have_a_rate_of_their_own():
    pageable, device = torch.ones(1 << 20), torch.ones(1 << 20, device=DEVICE)
    pinned = pageable.pin_memory()

    def copies():
        for host in (pinned, pageable):
            device.copy_(host)
            host.copy_(device)
            device.copy_(host.double())  # with a conversion, and never pinned

    made = recorded(copies)
    rows = [row for row in made.commands() if row.kind.startswith("copy_h2d") or "d2h" in row.kind]
    assert [row.kind for row in rows] == [
        "copy_h2d", "copy_d2h", "copy_h2d_pageable", "copy_h2d_pageable", "copy_d2h_pageable",
        "copy_h2d_pageable",
    ]  # fmt: skip
    took = [row.end_ns - row.start_ns - made.rates.copy_floor_ns for row in rows]
    assert took[2] > 2 * took[0]
    assert took[0] == took[1]
    assert made.replay().span_ns == made.span_ns


def test_free_copies_and_no_waits():
    host = torch.ones(1 << 16)
    made = recorded(lambda: host.to(DEVICE).sum().item())
    assert made.replay(copies_free=True).span_ns < made.span_ns
    assert made.replay().waited_ns > 0
    assert made.replay(no_host_waits=True).waited_ns == 0


def test_rows_can_be_changed_and_left_out():
    made = recorded(tiny_operators)
    assert made.replay(change=lambda row: None).span_ns == 0
    longer = made.replay(change=lambda row: row._replace(flops=1e12))
    assert longer.span_ns > made.span_ns


def test_other_rates_are_another_device():
    made = recorded(tiny_operators)
    slower = dataclasses.replace(made.rates, launch_latency_ns=10_000)
    assert made.replay(rates=slower).host_ns == len(made.commands()) * 10_000


def test_what_does_not_fit_is_counted():
    with timeline.record(most_rows=3) as made:
        tiny_operators()
    assert len(made.rows) == 3
    assert made.dropped > 30


def test_sites_are_asked_for_on_request(races_off):
    with timeline.record(sites=True) as made:
        torch.ones(8, device=DEVICE)
    assert all(row.site for row in made.commands())
    with timeline.record() as made:
        torch.ones(8, device=DEVICE)
    assert not any(row.site for row in made.commands())


def test_nothing_is_kept_after_the_block():
    made = recorded(tiny_operators)
    rows = len(made.rows)
    tiny_operators()
    assert len(made.rows) == rows


def test_a_wait_of_the_allocator_is_replayed(run_script):
    script = """
        import torch, torch_npusim
        from torch_npusim.sim import timeline

        a = torch.ones(4 << 20, device="npusim")
        with timeline.record() as made:
            b = torch.ones(9 << 20, device="npusim")
            del b
            torch.cat([a, a, a[: 2 << 20]])  # only the segment of b makes room for it
            a.sum().item()
        waits = [row for row in made.rows if row.kind == "allocator_wait"]
        assert len(waits) == 1, waits
        assert made.replay().span_ns == made.span_ns, (made.replay().span_ns, made.span_ns)
        """
    done = run_script(script, environment={"NPUSIM_DEVICE_MEMORY": "64MiB"})
    assert done.returncode == 0, done.stderr
