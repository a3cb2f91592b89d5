# SPDX-License-Identifier: BSD-3-Clause
"""PyTorch's CUDA tests count as their page says."""

import argparse
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from repo.sources import ROOT

from torch_npusim.patches import is_version

FOLDER = ROOT / "tools" / "cuda_tests"


MODULES = ("run", "page", "tables", "child", "outdated")


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


def test_a_rank_gets_moved_names_without_using_a_device():
    """DeviceMesh chooses the devices of ranks that have not used one."""
    code = """
import child, torch
child.give_moved_names()
from torch.testing._internal.common_mkldnn import bf32_on_and_off
assert torch.cuda.is_available() and not torch.cuda.is_initialized()
"""
    variables = os.environ | {"NPUSIM_AS_CUDA": "1", "PYTHONPATH": f"{FOLDER}{os.pathsep}{ROOT}"}
    subprocess.run([sys.executable, "-c", code], env=variables, check=True, timeout=300)


def test_a_half_of_the_page_without_results_stays(tool):
    before = "# Page\n\nfirst\n\n## torch.distributed\n\nsecond\n"
    assert tool.write_page({}, before) == before
    found = tool.compare(tool.WHOLE, {"": {"outcome": "end"}})
    found["first"] = {}
    page = tool.write_page({"2.15": {"distributed/test_device_mesh.py": found}}, before)
    assert page.startswith("# Page\n\nfirst\n\n## torch.distributed\n")
    assert "second" not in page


def test_a_version_without_results_keeps_its_columns(tool):
    def found(passed, failed, why):
        lost = {f"T.test_{n}": {"outcome": "failed", "why": why} for n in range(failed)}
        return {
            "alone": passed + failed, "alone_lost": failed, "whole": True,
            "excluded": {"slow": ["T.test_slow"]}, "lost": lost,
        }  # fmt: skip

    name = "distributed/test_device_mesh.py"
    first = {"2.13": {name: found(4, 1, "cuDNN")}}
    second = {
        "2.15": {name: found(5, 2, "cuDNN"), "distributed/test_c10d_pypg.py": found(1, 0, "")}
    }
    pages = [tool.write_page(first, "# Page\n\n## torch.distributed\n")]
    for results in (second, second, {}):
        pages.append(tool.write_page(results, pages[-1]))
    assert pages[1] == pages[2] == pages[3]
    for line in (
        "With 2.13, 4 of 5 tests that apply pass, 80.0 %.",
        "With 2.15, 6 of 8 tests that apply pass, 75.0 %.",
        "| file | devices | 2.13 apply | 2.13 pass | 2.15 apply | 2.15 pass |",
        "| `test_c10d_pypg.py` | 2 |  |  | 1 | 1 |",
        "| `test_device_mesh.py` | 8 | 5 | 4 | 7 | 5 |",
        "| slow | 1 | 2 |",
        "| no cuDNN | 1 | 2 | `distributed/test_device_mesh.py`: `T.test_0` |",
    ):
        assert f"{line}\n" in pages[1], line


def test_what_the_cpu_fails_in_the_same_words_does_not_apply(tool, monkeypatch):
    def failed(why):
        return {"outcome": "failed", "why": why, "seconds": 0.0}

    asked = []

    def run_file(_server, _file, _every, _limit, names):
        asked.extend(names)
        return {"gone": failed("AttributeError: x"), "ours": failed("ValueError: y")}

    monkeypatch.setattr(tool, "run_file", run_file)
    on_cuda = {
        "gone": failed("AttributeError: x"),
        "ours": failed("AttributeError: x"),
        "late": failed("longer than 300 s"),
        "passes": {"outcome": "passed", "why": "", "seconds": 0.0},
        "": {"outcome": "end"},
    }
    on_cpu = tool.same_failures(lambda: None, Path("file"), 1.0, on_cuda)
    assert asked == ["gone", "ours"]
    assert tool.compare(on_cpu, on_cuda)["excluded"] == {"fails on the CPU too": ["gone"]}


def test_a_file_that_is_in_no_table_is_refused_with_the_nearest(tool):
    whole = "distributed/test_device_mesh.py"
    assert tool.named(whole) == whole
    for wrong in ("distributed/test_device_mash.py", "test_device_mesh.py"):
        with pytest.raises(argparse.ArgumentTypeError, match=f"did you mean {whole}"):
            tool.named(wrong)


def test_what_is_older_than_the_installed_torch_is_shown_by_its_sources(tool):
    outdated = importlib.import_module("outdated")
    wrong = [
        row.words for row in outdated.CHANGES
        if row.is_shown(outdated.TORCH) != is_version(f">={row.since}")
    ]  # fmt: skip
    assert wrong == []
    assert [row.words for row in outdated.CHANGES if not (row.source and row.text)] == []
    row = outdated.Change(
        "T.*", "gone", "distributed/device_mesh.py", "class DeviceMesh", gone=True
    )
    assert not row.is_shown(outdated.TORCH)
    assert outdated.change_of("DTensorLogTest.test_dtensor_log") is not None
    assert outdated.change_of("DTensorLogTest.test_dtensor_log_2") is None
