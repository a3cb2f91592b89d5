# SPDX-License-Identifier: BSD-3-Clause
"""Contracts on a c10d backend, the profiler and the compiler: what is broken is found."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.autograd.profiler_util import FunctionEvent

from npusim_conformance.backend.expectations import Expectations
from npusim_conformance.contracts import distributed
from npusim_conformance.contracts.apart.compiling import compiles
from npusim_conformance.run.worker import Worker, WorkerConfig
from npusim_conformance.verdict import Mismatch, NotApplicable, Status

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


# --- the compiler


def on_npusim(import_name):
    """A run whose scripts import a module for the device."""
    device = torch.device("npusim", 0)
    return SimpleNamespace(
        under_test=SimpleNamespace(import_name=import_name, is_cpu=False, device=device)
    )


def test_a_backend_without_a_code_generator_is_told_so(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    with pytest.raises(NotApplicable, match=r"^Inductor has no code generator for npusim$"):
        compiles(on_npusim("without_a_generator"), "raise AssertionError", generator=True)


def test_a_graph_for_each_size_is_found():
    script = 'serves(torch.compile(program, backend="aot_eager", dynamic=False), (4, 5))'
    with pytest.raises(Mismatch, match=r"5 rows made graph 2: a size became a constant"):
        compiles(on_npusim("torch_npusim"), script)


def test_code_that_computes_something_else_is_found():
    with pytest.raises(Mismatch, match=r"values, 4 rows: Tensor-likes are not close!"):
        compiles(on_npusim("torch_npusim"), "holds(lambda x, weight: program(2 * x, weight), 4)")


def test_an_error_of_several_lines_is_told_from_its_start():
    with pytest.raises(
        Mismatch, match=r"it ended with status 1: ValueError: the cause and advice$"
    ):
        compiles(on_npusim("torch_npusim"), "raise ValueError('the cause\\nand advice')")


def test_npusims_generated_code_is_right(outcome):
    found = outcome("inductor/generated_code_runs_where_its_arguments_lie")
    assert (found.status, found.message) == (Status.PASS, "")
