# SPDX-License-Identifier: BSD-3-Clause
"""HolisticTraceAnalysis reads the traces of torch.profiler that have CUDA's names: `make hta`."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from torch_npusim.sim import timeline

ANALYSES = Path(__file__).with_name("analyses.py")
#: It rounds the begin and the end of each row to whole microseconds, inwards.
ROUNDED_US = 2.0


def step(model, optimizer, host, side):
    x = host.to("npusim")
    with torch.npusim.stream(side):
        torch.ones(1 << 20, device="npusim").mul(2)
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    torch.npusim.synchronize()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(rows of the timeline, what HTA says of the trace of the same three steps)"""
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8)).to("npusim")
    optimizer = torch.optim.AdamW(model.parameters())
    host, side = torch.ones(32, 64), torch.npusim.Stream()
    step(model, optimizer, host, side)
    path = tmp_path_factory.mktemp("trace") / "rank0.json"
    torch.npusim.profiler.set_trace_names("cuda")
    try:
        activities = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]
        with timeline.record() as rows, profile(activities=activities) as found:
            for _ in range(3):
                step(model, optimizer, host, side)
        found.export_chrome_trace(str(path))
    finally:
        torch.npusim.profiler.set_trace_names("npusim")
    done = subprocess.run(
        [os.environ["HTA_PYTHON"], str(ANALYSES), str(path)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return rows.commands(), json.loads(done.stdout)


def microseconds(rows):
    return sum(row.end_ns - row.start_ns for row in rows) / 1000


def test_kernels_and_copies_are_told_apart(made):
    rows, found = made
    copies = [row for row in rows if row.kind != "kernel"]
    kinds = {row["kernel_type"]: row["sum"] for row in found["kinds"]}
    assert set(kinds) == {"COMPUTATION", "MEMORY"}
    assert len(copies) == 3
    assert kinds["MEMORY"] == pytest.approx(microseconds(copies), abs=3 * ROUNDED_US)
    kernels = [row for row in rows if row.kind == "kernel"]
    assert kinds["COMPUTATION"] == pytest.approx(
        microseconds(kernels), abs=len(kernels) * ROUNDED_US
    )


def test_ranges_are_no_kernels(made):
    rows, found = made
    names = {row["name"] for row in found["kernels"]}
    assert names - {"others"} <= {row.name for row in rows} | {"Memcpy HtoD"}
    assert "Memcpy HtoD" in names
    assert [row["name"] for row in found["annotations"]] == ["Optimizer.step#AdamW.step"]


def test_time_is_idle_computing_or_copying(made):
    rows, found = made
    (temporal,) = found["temporal"]
    parts = [temporal[f"{part}_time(us)"] for part in ("idle", "compute", "non_compute")]
    assert sum(parts) == temporal["kernel_time(us)"]
    span = (max(row.end_ns for row in rows) - min(row.start_ns for row in rows)) / 1000
    assert temporal["kernel_time(us)"] == pytest.approx(span, abs=2 * ROUNDED_US)
    assert min(parts) > 0


def test_idle_time_has_reasons_on_both_streams(made):
    rows, found = made
    assert {row["stream"] for row in found["idle"]} == {row.stream for row in rows}
    waits = {row["idle_category"] for row in found["idle"] if row["idle_time"] > 0}
    assert waits == {"host_wait", "kernel_wait"}


def test_every_command_has_its_launch(made):
    rows, found = made
    assert len(found["launches"]) == len(rows)
    latency = 4.0  # npusim-one
    for row in found["launches"]:
        assert row["cpu_duration"] == pytest.approx(latency, abs=ROUNDED_US)
    assert found["queues"] == 2


def test_copies_have_a_bandwidth(made):
    rows, found = made
    copies = [row for row in rows if row.kind.startswith("copy_h2d")]
    (mean,) = found["bandwidth"]
    assert mean == pytest.approx(
        copies[0].bytes / (copies[0].end_ns - copies[0].start_ns), rel=0.01
    )
