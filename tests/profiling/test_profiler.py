# SPDX-License-Identifier: BSD-3-Clause
"""torch.profiler shows the devices: rows of virtual time that are linked to operators."""

import json

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

DEVICE = "npusim"
BOTH = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).to(DEVICE)


def trace_of(found, tmp_path):
    path = tmp_path / "trace.json"
    found.export_chrome_trace(str(path))
    return json.loads(path.read_text())


def rows(trace, category):
    return [event for event in trace["traceEvents"] if event.get("cat") == category]


def test_operators_have_the_time_of_their_kernels(tmp_path):
    a = torch.ones(64, 64, device=DEVICE)
    with profile(activities=BOTH) as found:
        a @ a
    averages = {event.key: event for event in found.key_averages()}
    (kernel,) = rows(trace_of(found, tmp_path), "kernel")
    assert kernel["name"] == "aten::mm"
    assert averages["aten::mm"].self_device_time_total == pytest.approx(kernel["dur"])
    assert "Self NPUSIM" in found.key_averages().table()


def test_every_device_event_is_linked_to_an_operator(model):
    x = torch.ones(4, 64, device=DEVICE)
    with profile(activities=BOTH) as found:
        model(x).sum().backward()
    ours = [event for event in found.events() if event.device_type.name != "CPU"]
    linked = [kernel for event in found.events() for kernel in event.kernels]
    kernels = [event for event in ours if not event.is_user_annotation]
    assert len(kernels) == len(linked) > 10
    backward = [event for event in found.events() if event.name.endswith("Backward0")]
    assert backward
    assert any(event.device_time_total > 0 for event in backward)


def test_the_device_alone_can_be_profiled():
    x = torch.ones(64, device=DEVICE)
    with profile(activities=[ProfilerActivity.PrivateUse1]) as found:
        x + 1
    assert "aten::add.Tensor" in {event.key for event in found.key_averages()}


def test_rows_are_of_streams_and_of_kinds(tmp_path):
    side = torch.npusim.Stream()
    host = torch.ones(1024)
    with profile(activities=BOTH) as found:
        x = host.to(DEVICE)
        with torch.npusim.stream(side):
            x.add(1)
        torch.zeros(16, device=DEVICE)
        torch.npusim.synchronize()
    trace = trace_of(found, tmp_path)
    assert {row["tid"] for row in rows(trace, "kernel")} == {0, side.stream_id}
    assert [row["name"] for row in rows(trace, "gpu_memcpy")] == ["copy_h2d"]
    launches = [row for row in trace["traceEvents"] if row.get("name") == "npusimLaunchKernel"]
    assert len(launches) == len(rows(trace, "kernel"))
    assert any(row.get("name") == "npusimDeviceSynchronize" for row in trace["traceEvents"])


def test_times_are_those_of_the_virtual_clock(tmp_path):
    from torch_npusim.sim import timeline

    x = torch.ones(1 << 20, device=DEVICE)
    torch.npusim.synchronize()
    with timeline.record() as made, profile(activities=BOTH) as found:
        x + 1
        x + 2
    kernels = rows(trace_of(found, tmp_path), "kernel")
    durations = [row.end_ns - row.start_ns for row in made.commands()]
    assert [round(row["dur"] * 1000) for row in kernels] == durations


def test_the_trace_says_which_time_is_virtual(tmp_path):
    with profile(activities=BOTH) as found:
        torch.ones(8, device=DEVICE)
    trace = trace_of(found, tmp_path)
    names = [event["args"]["name"] for event in rows_of_names(trace)]
    assert any("virtual time" in name for name in names)
    assert "virtual time" in json.dumps(trace["npusim_time"])


def rows_of_names(trace):
    return [e for e in trace["traceEvents"] if e.get("name") in ("thread_name", "process_name")]


def test_launches_do_not_count_as_time_of_the_processor():
    x = torch.ones(8, device=DEVICE)
    with profile(activities=BOTH) as found:
        x + 1
    launch = [event for event in found.events() if event.name == "npusimLaunchKernel"]
    assert launch
    assert all(event.device_type.name != "CPU" for event in launch)


def test_ranges_are_on_the_device_too(tmp_path):
    x = torch.ones(8, device=DEVICE)
    with profile(activities=BOTH) as found, record_function("forward"):
        x + 1
        x + 2
    trace = trace_of(found, tmp_path)
    kernels = rows(trace, "kernel")
    (mine,) = [e for e in rows(trace, "gpu_user_annotation") if e["name"] == "forward"]
    # Microseconds since 1970 in double precision are 1 ns apart.
    assert mine["ts"] == pytest.approx(kernels[0]["ts"], abs=3e-3)
    assert mine["ts"] + mine["dur"] == pytest.approx(kernels[1]["ts"] + kernels[1]["dur"], abs=3e-3)


def test_the_range_of_a_step_has_all_its_kernels(tmp_path):
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(4, 8, device=DEVICE)
    with profile(activities=BOTH) as found:
        for step in range(3):
            with record_function(f"step {step}"):
                model(x).sum().backward()  # in a thread of autograd's
                optimizer.step()  # a range of its own
                optimizer.zero_grad()
    trace = trace_of(found, tmp_path)
    ranges = rows(trace, "gpu_user_annotation")
    steps = [event for event in ranges if event["name"].startswith("step ")]
    inner = [event for event in ranges if "Optimizer.step" in event["name"]]
    assert len(steps) == len(inner) == 3
    for event in [*rows(trace, "kernel"), *inner]:
        begin, end = event["ts"], event["ts"] + event["dur"]
        holding = [s for s in steps if s["ts"] - 1e-3 <= begin and end <= s["ts"] + s["dur"] + 1e-3]
        assert len(holding) == 1, event


def test_schedules_give_a_trace_per_cycle():
    done = []
    x = torch.ones(8, device=DEVICE)
    with profile(
        activities=BOTH,
        schedule=schedule(wait=1, warmup=1, active=2, repeat=2),
        on_trace_ready=lambda p: done.append(
            [e for e in p.events() if e.name == "aten::add.Tensor"]
        ),
    ) as found:
        for _ in range(8):
            x + 1
            found.step()
    assert [len(events) for events in done] == [2, 2]


def test_memory_and_its_timeline(tmp_path, model):
    x = torch.ones(4, 64, device=DEVICE)
    with profile(
        activities=BOTH, profile_memory=True, record_shapes=True, with_stack=True
    ) as found:
        model(x).sum().backward()
    assert any(event.self_device_memory_usage > 0 for event in found.key_averages())
    path = tmp_path / "memory.json"
    found.export_memory_timeline(str(path), device="npusim:0")
    times, sizes = json.loads(path.read_text())
    assert len(times) == len(sizes) > 1


def test_stacks_of_operators(tmp_path, model):
    x = torch.ones(4, 64, device=DEVICE)
    config = torch._C._profiler._ExperimentalConfig(verbose=True)
    with profile(activities=BOTH, with_stack=True, experimental_config=config) as found:
        model(x)
    path = tmp_path / "stacks"
    found.export_stacks(str(path), "self_privateuse1_time_total")
    assert "test_profiler" in path.read_text()


def test_ranges_of_the_module_are_like_those_of_nvtx():
    from torch_npusim.npusim import profiler

    with profile(activities=[ProfilerActivity.CPU]) as found:
        assert profiler.range_push("outer") == 0
        assert profiler.range_push("inner") == 1
        assert [profiler.range_pop(), profiler.range_pop(), profiler.range_pop()] == [1, 0, -1]
        with torch.npusim.profiler.range("block"):
            profiler.mark("here")
        profiler.range_end(profiler.range_start("anywhere"))
    names = {event.key for event in found.key_averages()}
    assert {"outer", "inner", "block", "here", "anywhere"} <= names
    with pytest.raises(RuntimeError, match="no range with the number 7"):
        profiler.range_end(7)


def test_stop_keeps_commands_out_until_start():
    x = torch.ones(8, device=DEVICE)
    with profile(activities=BOTH) as found:
        torch.npusim.profiler.stop()
        x.mul(2)
        with torch.npusim.profiler.profile():
            x.add(1)
        x.mul(3)
        torch.npusim.profiler.start()
    names = [e.name for e in found.events() if e.device_type.name != "CPU"]
    assert "aten::add.Tensor" in names
    assert "aten::mul.Tensor" not in names


def test_a_stop_does_not_outlast_its_profile():
    x = torch.ones(8, device=DEVICE)
    with torch.npusim.profiler.profile():
        x.mul(2)
    with profile(activities=BOTH) as found:
        x.add(1)
    assert "aten::add.Tensor" in [event.name for event in found.events()]


def test_names_of_cuda_on_request(tmp_path):
    torch.npusim.profiler.set_trace_names("cuda")
    try:
        with profile(activities=BOTH) as found:
            torch.ones(8, device=DEVICE) + 1
        trace = trace_of(found, tmp_path)
    finally:
        torch.npusim.profiler.set_trace_names("npusim")
    launches = [row for row in rows(trace, "cuda_runtime") if row["name"] == "cudaLaunchKernel"]
    kernels = rows(trace, "kernel")
    assert [row["args"]["correlation"] for row in launches] == [
        row["args"]["correlation"] for row in kernels
    ]
    with pytest.raises(ValueError, match='expected "npusim" or "cuda"'):
        torch.npusim.profiler.set_trace_names("rocm")


def test_without_a_profile_nothing_is_watched():
    from torch_npusim.sim import timeline

    with profile(activities=BOTH):
        torch.ones(8, device=DEVICE)
    with timeline.record() as made:
        pass
    torch.ones(8, device=DEVICE)
    assert made.rows == []
