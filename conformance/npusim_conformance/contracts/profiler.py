# SPDX-License-Identifier: BSD-3-Clause
"""torch.profiler around work on the device."""

import json
import tempfile
import time
from pathlib import Path

import torch
from torch.autograd.profiler import profile as autograd_profile
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from npusim_conformance.contracts import contract, refuses, same
from npusim_conformance.properties.base import Run, require
from npusim_conformance.verdict import NotApplicable

_PAUSE_SECONDS = 0.02
_HOST = (ProfilerActivity.CPU,)


def _work(run: Run) -> torch.Tensor:
    values = torch.ones(64, 64).to(run.device)
    return values.add(1).mul(2).sum()


def _device_activity(run: Run) -> ProfilerActivity:
    wanted = run.device.type.upper()
    activities = torch.profiler.supported_activities()  # type: ignore[no-untyped-call]
    for activity in activities:
        if activity.name == wanted:
            return ProfilerActivity(activity)
    raise NotApplicable(f"the profiler supports no activity {wanted}")


@contract()
def records_operators(run: Run) -> None:
    """Operators on the device are recorded by name, and give the right result meanwhile."""
    with profile(activities=_HOST) as found:
        result = _work(run)
    same("the result", float(result), 4.0 * 64 * 64)
    names = {event.key for event in found.key_averages()}
    missing = {"aten::add", "aten::mul", "aten::sum"} - names
    require(not missing, f"no record of {', '.join(sorted(missing))}")


@contract()
def records_ranges(run: Run) -> None:
    """record_function() ranges are recorded, with shapes where they are asked for."""
    with profile(activities=_HOST, record_shapes=True) as found, record_function("my_range"):
        _work(run)
    names = {event.key for event in found.key_averages()}
    require("my_range" in names, "the range is missing")
    shapes = [event.input_shapes for event in found.events() if event.name == "aten::add"]
    require([64, 64] in shapes[0], f"shapes of aten::add are {shapes}")


@contract(no_cpu="the CPU's operators are the host's")
def records_the_device(run: Run) -> None:
    """With the device's activity, work on the device is recorded as such, and takes time."""
    activity = _device_activity(run)
    with profile(activities=(*_HOST, activity)) as found:
        _work(run)
        run.under_test.synchronize()
    on_device = [event for event in found.events() if event.device_type.name != "CPU"]
    if not on_device and run.device.type == torch._C._get_privateuse1_backend_name():
        # torch names the activity of every renamed backend, whether it has a profiler or not.
        raise NotApplicable("no event is the device's; REGISTER_PRIVATEUSE1_PROFILER makes them")
    require(bool(on_device), "no event is the device's")
    total = sum(event.self_device_time_total for event in found.key_averages())
    require(total > 0, f"the device was busy for {total} us")


@contract(no_cpu="the CPU's operators are the host's")
def links_work_to_operators(run: Run) -> None:
    """Each operator knows the work on the device that it launched, also in the Chrome trace."""
    activity = _device_activity(run)
    with profile(activities=(*_HOST, activity)) as found:
        _work(run)
        run.under_test.synchronize()
    if all(event.device_type.name == "CPU" for event in found.events()):
        raise NotApplicable("no event is the device's")
    for name in ("aten::add", "aten::mul", "aten::sum"):
        kernels = [one for event in found.events() if event.name == name for one in event.kernels]
        require(bool(kernels), f"{name} is linked to nothing on the device")
    flows = [one for one in _trace(found) if isinstance(one, dict) and one.get("ph") in ("s", "f")]
    starts = {one["id"] for one in flows if one["ph"] == "s"}
    ends = {one["id"] for one in flows if one["ph"] == "f"}
    require(bool(starts & ends), "the trace has no arrow from an operator to the device")


@contract(no_cpu="the CPU's operators are the host's")
def table_and_trace_show_the_device(run: Run) -> None:
    """The table and the Chrome trace can be made of a profile of the device."""
    activity = _device_activity(run)
    with profile(activities=(*_HOST, activity)) as found:
        _work(run)
    require("aten::add" in found.key_averages().table(row_limit=50), "the table lacks aten::add")
    require(bool(_trace(found)), "the trace is empty")


def _trace(found: profile) -> list[object]:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "trace.json")
        found.export_chrome_trace(str(file))
        events: list[object] = json.loads(file.read_text())["traceEvents"]
        return events


@contract(no_cpu="the CPU's operators are the host's")
def times_of_ranges_are_plausible(run: Run) -> None:
    """The device's time of a range is no longer than the host's, and in the same unit."""
    with autograd_profile(use_device=run.device.type) as found:
        begun = time.perf_counter()
        for pause in (0.0, _PAUSE_SECONDS):
            with record_function(f"range {pause}"):
                _work(run)
                run.under_test.synchronize()
                time.sleep(pause)
        whole = 1e6 * (time.perf_counter() - begun)
    short, long = (
        sum(
            event.device_time_total
            for event in found.function_events
            if event.name == f"range {pause}"
        )
        for pause in (0.0, _PAUSE_SECONDS)
    )
    if long == 0 or abs(long - short) < 1.0:
        raise NotApplicable("the device's clock does not go on while the host pauses")
    least = 5e5 * _PAUSE_SECONDS
    agree = least <= long <= whole
    require(agree, f"a range around a pause of {1e6 * _PAUSE_SECONDS:g} us takes {long} us")


@contract()
def trace_is_json(run: Run) -> None:
    """export_chrome_trace() writes JSON with the operators in it."""
    with profile(activities=_HOST) as found:
        _work(run)
    names = {event.get("name") for event in _trace(found) if isinstance(event, dict)}
    require("aten::add" in names, "the trace lacks aten::add")


@contract()
def records_backward(run: Run) -> None:
    """A training step is recorded, backward included."""
    module = torch.nn.Linear(8, 4).to(run.device)
    with profile(activities=_HOST) as found:
        torch.autograd.backward(module(torch.ones(2, 8).to(run.device)).sum())
    names = {event.key for event in found.key_averages()}
    require(any("Backward" in name for name in names), f"no backward among {sorted(names)[:20]}")


@contract()
def follows_a_schedule(run: Run) -> None:
    """schedule() and step() choose the steps that are recorded."""
    ready = []
    with profile(
        activities=_HOST,
        schedule=schedule(wait=1, warmup=1, active=2, repeat=1),
        on_trace_ready=lambda found: ready.append(len(found.events())),
    ) as found:
        for _ in range(5):
            _work(run)
            found.step()
    require(len(ready) == 1 and ready[0] > 0, f"traces that were ready: {ready}")


@contract()
def lets_exceptions_through(run: Run) -> None:
    """An exception inside ends the profile, goes through, and the next profile works."""

    def body() -> None:
        with profile(activities=_HOST):
            _work(run)
            raise KeyError("from the body")

    refuses("the body", body, KeyError)
    with profile(activities=_HOST) as found:
        _work(run)
    require(bool(found.events()), "the next profile is empty")


@contract(no_cpu="memory of the CPU is recorded by torch itself")
def records_memory(run: Run) -> None:
    """profile_memory=True shows what operators allocate on the device."""
    kept = torch.ones(1).to(run.device)
    activity = _device_activity(run)
    with profile(activities=(*_HOST, activity), profile_memory=True) as found:
        kept = torch.empty(1 << 20, dtype=torch.uint8, device=run.device)
    total = max(event.device_memory_usage for event in found.events())
    if total == 0 and run.device.type == torch._C._get_privateuse1_backend_name():
        raise NotApplicable("nothing is recorded; c10::reportMemoryUsageToProfiler() does it")
    require(total >= kept.numel(), f"a tensor of 1 MiB shows as {total} bytes")
