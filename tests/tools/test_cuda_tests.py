# SPDX-License-Identifier: BSD-3-Clause
"""PyTorch's CUDA tests count as their page says."""

import importlib
import sys

import pytest
from repo.sources import ROOT

FOLDER = ROOT / "tools" / "cuda_tests"


MODULES = ("run", "page", "tables", "child")


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    yield importlib.import_module("run")
    for name in MODULES:  # other tools have modules of these names
        sys.modules.pop(name, None)


def test_a_test_counts_by_its_twin_and_by_what_a_real_gpu_would_skip(tool):
    def end(outcome, why=""):
        return {"outcome": outcome, "why": why, "seconds": 0.0}

    on_cpu = {
        "passes": end("passed"),
        "lost": end("passed"),
        "broken": end("failed"),
        "only": end("skipped"),
        "gated": end("passed"),
        "": end("end"),
    }
    on_cuda = {
        "passes": end("passed"),
        "lost": end("failed", "RuntimeError: no"),
        "broken": end("passed"),
        "only": end("skipped", "CUDNN not available"),
        "gated": end("skipped", "fewer than 2 devices detected"),
        "absent": end("passed"),
        "": end("end"),
    }
    found = tool.compare(on_cpu, on_cuda)
    assert (found["tests"], found["whole"]) == (6, True)
    assert (found["twin"], found["twin_lost"]) == (2, 1)
    assert (found["alone"], found["alone_lost"]) == (2, 1)
    assert found["excluded"] == {
        "fails on the CPU too": ["broken"],
        "more than one GPU": ["gated"],
    }
    assert found["lost"].keys() == {"lost", "only"}


def test_the_name_of_a_twin_is_the_same(tool):
    child = importlib.import_module("child")
    both = {
        child.generic("TestACUDA.test_x_cuda_float32", "cuda"),
        child.generic("TestACPU.test_x_cpu_float32", "cpu"),
    }
    assert both == {"TestA.test_x_device_float32"}
    assert child.generic("TestCuda.test_cuda", "cuda") == "TestCuda.test_cuda"
