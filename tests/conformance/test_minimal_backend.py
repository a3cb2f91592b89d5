# SPDX-License-Identifier: BSD-3-Clause
"""The kit on somebody else's backend, in an environment where npusim does not exist."""

import json
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import torch
from repo.sources import ROOT

HERE = ROOT / "tests" / "conformance" / "minimal_backend"


@pytest.fixture(scope="session")
def package():
    """The folder that holds the built torch_minimal; rebuilt only when its source changed."""
    base = ROOT / "build" / f"minimal_backend-{torch.__version__}"
    command = [sys.executable, "setup.py", "-q", "build"]
    command += ["--build-base", str(base), "--build-lib", str(base / "lib")]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {
        "PATH": path,  # for ninja
        "MAX_JOBS": "1",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    }
    subprocess.run(command, cwd=HERE, env=environment, check=True, timeout=300, capture_output=True)
    return base / "lib"


@pytest.fixture(scope="session")
def python(package, tmp_path_factory):
    """Runs Python with torch, the kit and torch_minimal; torch_npusim cannot be imported there."""
    directory = tmp_path_factory.mktemp("environment")
    venv.create(directory)
    (packages,) = directory.glob("lib/python*/site-packages")
    # A folder named in a .pth file is searched, but the .pth files in it are not read: editable
    # installs of this project stay outside.
    folders = [Path(torch.__file__).parents[1], ROOT / "conformance", package]
    (packages / "there.pth").write_text("".join(f"{folder}\n" for folder in folders))
    inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environment = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1", **inherited}

    def run(*arguments):
        return subprocess.run(
            [directory / "bin" / "python", *arguments],
            cwd=directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def outcomes(python, tmp_path_factory):
    """{case: record} of one run of the kit."""
    directory = tmp_path_factory.mktemp("minimal")
    operators = "add fill mul gather unfold real nn.functional.conv2d".split()
    done = python(
        *("-m", "npusim_conformance", "run", "--device", "minimal", "--jobs", "1", "--quiet"),
        *("--expect", str(HERE / "expectations.toml"), "--out", str(directory)),
        *("--ops", ",".join([*(f"op:{name}" for name in operators), "contract:storage"])),
    )
    assert done.returncode == 1, done.stderr  # it does have failures
    log = (directory / "run.jsonl").read_text().splitlines()[1:]
    return {record["case"]: record for record in map(json.loads, log)}


def test_there_is_no_npusim(python):
    done = python("-c", "import torch, torch_minimal, npusim_conformance, torch_npusim")
    assert "No module named 'torch_npusim'" in done.stderr


def test_an_own_kernel_passes(outcomes):
    assert outcomes["op:add/forward/float32"]["status"] == "pass"
    assert outcomes["op:add/forward/float32"]["native"] is True


def test_a_fallback_is_no_pass_of_the_device(outcomes):
    assert outcomes["op:mul/forward/float32"]["status"] == "fallback-pass"
    assert outcomes["op:mul/forward/float32"]["fallbacks"] == ["aten::mul.out"]


def test_a_missing_kernel_is_named(outcomes):
    record = outcomes["op:nn.functional.conv2d/forward/float32"]
    assert record["status"] == "unimplemented"
    assert record["missing"] == "aten::convolution_overrideable"


def test_views_that_copy_are_found(outcomes):
    for case in ("op:unfold/aliasing/float32", "op:real/aliasing/complex64"):
        assert outcomes[case]["status"] == "fail"
        assert "does not share memory" in outcomes[case]["message"]
    assert outcomes["contract:storage/complex_views_share_it"]["status"] == "fail"


def test_the_missing_fallthrough_for_autocast_is_one_cause(outcomes):
    cases = [case for case in outcomes if "/autocast/" in case]
    assert {outcomes[case]["cause"] for case in cases} == {"no fallback for Autocastminimal"}


def test_operands_on_two_devices_are_refused_by_the_own_kernel_only(outcomes):
    assert outcomes["op:add/mixed_device/float32"]["status"] == "pass"
    assert outcomes["op:gather/mixed_device/float32"]["status"] == "fail"


def test_the_next_ten_kernels_are_those_that_most_operators_wait_for(python):
    device = ("--device", "minimal", "--import", "torch_minimal")
    done = python("-m", "npusim_conformance", "plan", *device, "--kernels", "10", "--json")
    plan = json.loads(done.stdout)
    kernels = [kernel["overload"] for kernel in plan["kernels"]]
    assert {"aten::mul.out", "aten::sum.IntList_out", "aten::cat.out", "aten::mm.out"} < {*kernels}
    own = re.findall(r'm\.impl\("([\w.]+)"', (HERE / "backend.cpp").read_text())
    assert {*kernels}.isdisjoint(f"aten::{name}" for name in own)
    assert len({*kernels}) == 10
    unlocked = [len(kernel["unlocks"]) for kernel in plan["kernels"]]
    assert plan["kernels"][-1]["ready"] == plan["ready"] + sum(unlocked)
    assert sum(unlocked) >= 40


def test_nothing_crashes(outcomes):
    assert {record["status"] for record in outcomes.values()}.isdisjoint({"crash", "timeout"})
