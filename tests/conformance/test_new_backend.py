# SPDX-License-Identifier: BSD-3-Clause
"""The kit on a backend that `npusim-conformance new-backend` writes, where npusim is not there.

`make new-backend` goes on from here, through all the steps of docs/judge/new_backend.md.
"""

import json
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import processes
import pytest
import torch
from repo.sources import ROOT

from npusim_conformance.cli import main, new_backend

PLACE = ROOT / "build" / f"new_backend-{torch.__version__}"
STEPS = new_backend.TEMPLATE / "steps"


def build(project, into):
    """Compiles a project; files that did not change are not compiled again."""
    command = ["setup.py", "-q", "build"]
    command += ["--build-base", str(into), "--build-lib", str(into / "lib")]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {
        "PATH": path,  # for ninja
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    }
    done = processes.python(*command, env=environment, timeout=1800, cwd=project)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return into / "lib"


@pytest.fixture(scope="session")
def project():
    """The project as it is written; what does not change keeps its time."""
    folder = PLACE / "torch_mychip"
    for path, text in new_backend._files(new_backend.TEMPLATE / "project", "mychip"):
        file = folder / path
        if not file.exists() or file.read_text() != text:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    return folder


@pytest.fixture(scope="session")
def package(project):
    """The folder that holds the built torch_mychip."""
    return build(project, PLACE / "build")


@pytest.fixture(scope="session")
def python(package, tmp_path_factory):
    """Runs Python with torch, the kit and torch_mychip; torch_npusim cannot be imported there."""
    directory = tmp_path_factory.mktemp("environment")
    venv.create(directory)
    (packages,) = directory.glob("lib/python*/site-packages")
    # A folder named in a .pth file is searched, but the .pth files in it are not read: editable
    # installs of this project stay outside.
    folders = [Path(torch.__file__).parents[1], ROOT / "conformance", package]
    (packages / "there.pth").write_text("".join(f"{folder}\n" for folder in folders))
    inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environment = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1", **inherited}

    def run(*arguments, **variables):
        return subprocess.run(
            [directory / "bin" / "python", *arguments],
            cwd=directory,
            env=environment | variables,
            capture_output=True,
            text=True,
            timeout=1800,
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def outcomes(python, project, tmp_path_factory):
    """{case: record} of one run of the kit."""
    directory = tmp_path_factory.mktemp("mychip")
    operators = "add fill mul gather unfold real nn.functional.conv2d".split()
    done = python(
        *("-m", "npusim_conformance", "run", "--device", "mychip", "--jobs", "1", "--quiet"),
        *("--expect", str(project / "expectations.toml"), "--out", str(directory)),
        *("--ops", ",".join([*(f"op:{name}" for name in operators), "contract:storage"])),
    )
    assert done.returncode == 1, done.stderr  # it does have failures
    log = (directory / "run.jsonl").read_text().splitlines()[1:]
    return {record["case"]: record for record in map(json.loads, log) if "case" in record}


def test_there_is_no_npusim(python):
    done = python("-c", "import torch, torch_mychip, npusim_conformance, torch_npusim")
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
    assert {outcomes[case]["cause"] for case in cases} == {"no fallback for Autocastmychip"}


def test_operands_on_two_devices_are_refused_by_kernels_and_by_the_fallback(outcomes):
    assert outcomes["op:add/mixed_device/float32"]["status"] == "pass"
    assert outcomes["op:gather/mixed_device/float32"]["status"] == "fallback-pass"


def test_the_next_ten_kernels_are_those_that_most_operators_wait_for(python, project):
    device = ("--device", "mychip", "--import", "torch_mychip")
    done = python("-m", "npusim_conformance", "plan", *device, "--kernels", "10", "--json")
    plan = json.loads(done.stdout)
    kernels = [kernel["overload"] for kernel in plan["kernels"]]
    assert {"aten::mul.out", "aten::sum.IntList_out", "aten::cat.out", "aten::mm.out"} < {*kernels}
    own = re.findall(r'm\.impl\("([\w.]+)"', (project / "csrc" / "operators.cpp").read_text())
    assert {*kernels}.isdisjoint(f"aten::{name}" for name in own)
    assert len({*kernels}) == 10
    unlocked = [len(kernel["unlocks"]) for kernel in plan["kernels"]]
    assert plan["kernels"][-1]["ready"] == plan["ready"] + sum(unlocked)
    assert sum(unlocked) >= 40


def test_nothing_crashes(outcomes):
    assert {record["status"] for record in outcomes.values()}.isdisjoint({"crash", "timeout"})


def test_its_own_tests_pass(python, project):
    done = python("-m", "pytest", "-q", "-p", "no:npusim", str(project / "tests"))
    assert done.returncode == 0, done.stdout  # 5, were there none


# --- the command


def test_names_and_places_that_will_not_do_are_refused(tmp_path, capsys):
    def said(*arguments):
        status = main(["new-backend", *arguments])
        return status, capsys.readouterr().err

    assert said("My-Chip")[0] == 1
    assert "torch knows a device 'cuda' already" in said("cuda")[1]
    assert "torch.load() can take 'cudax' for 'cuda'" in said("cudax")[1]
    assert "torch.load() can take 'cpux' for 'cpu'" in said("cpux")[1]
    assert "'class' is a word of Python or torch" in said("class")[1]
    assert "'torch' is a word of Python or torch" in said("torch")[1]
    assert "torch knows a device 'npusim' already" in said("npusim")[1]
    place = str(tmp_path / "there")
    assert "write it first" in said("otherchip", "--out", place, "--step", "1")[1]
    assert not (tmp_path / "there").exists()
    assert said("otherchip", "--out", place) == (0, "")
    (tmp_path / "there" / "README.md").write_text("mine")
    assert (
        "README.md is there already, and says something else"
        in said("otherchip", "--out", place)[1]
    )
    assert (tmp_path / "there" / "README.md").read_text() == "mine"


def test_every_file_has_the_name_that_was_given(tmp_path, capsys):
    assert main(["new-backend", "otherchip", "--out", str(tmp_path / "p"), "--json"]) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert {"torch_otherchip/__init__.py", ".github/workflows/conformance.yml"} < {*files}
    for step in new_backend.STEPS:
        assert (
            main(["new-backend", "otherchip", "--out", str(tmp_path / "p"), "--step", str(step)])
            == 0
        )
    texts = {path: path.read_text() for path in (tmp_path / "p").rglob("*") if path.is_file()}
    assert [path for path, text in texts.items() if "mychip" in text.lower()] == []
    assert (tmp_path / "p" / "csrc" / "random.cpp").exists()


def test_only_public_hooks_are_used():
    """Of torch's headers: nothing of detail but what its hooks are, no source of npusim."""
    included = set()
    for path in new_backend.TEMPLATE.rglob("*.[ch]*"):
        included |= set(re.findall(r'#include [<"]([^>"]+)[>"]', path.read_text()))
    ours = [name for name in included if "npusim" in name or "csrc/" in name]
    assert set(ours) == {"torch/csrc/utils/device_lazy_init.h", "torch/csrc/utils/pybind.h"}
    assert (
        len(
            re.findall(
                r"^mychip_status mychip_\w+\(|^const char\* mychip_",
                (new_backend.TEMPLATE / "project/csrc/driver.h").read_text(),
                re.M,
            )
        )
        == 18
    )
