# SPDX-License-Identifier: BSD-3-Clause
"""Contracts on a c10d backend, the profiler and the compiler: what is broken is found."""

from pathlib import Path

import pytest
import torch
from torch.autograd.profiler_util import FunctionEvent

from npusim_conformance.contracts import distributed
from npusim_conformance.expectations import Expectations
from npusim_conformance.verdict import Status
from npusim_conformance.worker import Worker, WorkerConfig

BROKEN = {
    "values/all_reduce PRODUCT",
    "dtypes/uint8",
    "async/waits",
    "async/overlaps",
    "errors/no such rank",
    "errors/wrong device",
}


@pytest.fixture(scope="module")
def outcome():
    worker = Worker(WorkerConfig("npusim", "torch_npusim", Expectations()))
    return lambda name: worker.execute(f"contract:{name}")


def test_ranks_find_each_broken_collective_and_nothing_else(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    found = distributed._found("cpu", "broken_collectives")
    assert {name for name, wrong in found.items() if wrong} == BROKEN
    assert "rank 0: [2.0, 3.0], expected [2.0, 6.0]" in found["values/all_reduce PRODUCT"]


def test_npusims_collectives_are_right(outcome):
    for name in ("have_the_right_values", "take_the_usual_dtypes", "refuse_mistakes"):
        found = outcome(f"distributed/collectives_{name}")
        assert (found.status, found.message) == (Status.PASS, "")


def test_a_backend_without_collectives_is_told_so(outcome, monkeypatch):
    monkeypatch.delitem(torch.distributed.Backend.default_device_backend_map, "npusim")
    found = outcome("distributed/collectives_have_the_right_values")
    assert found.status is Status.NA
    assert found.message == "no c10d backend is registered for npusim"


def test_work_without_its_operator_is_found(outcome, monkeypatch):
    assert outcome("profiler/links_work_to_operators").status is Status.PASS
    monkeypatch.setattr(FunctionEvent, "append_kernel", lambda *_: None)
    found = outcome("profiler/links_work_to_operators")
    assert found.status is Status.FAIL
    assert "aten::add is linked to nothing on the device" in found.message
