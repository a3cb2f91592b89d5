# SPDX-License-Identifier: BSD-3-Clause
"""The workflow, the action and the Dockerfile: valid, wired; the action's script without network.

`make wheels-test` runs the same script with the real pip.
"""

import os
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from repo.sources import ROOT, shown
from ruamel.yaml import YAML

ACTION = ROOT / ".github" / "actions" / "setup-npusim"
SCRIPT = ACTION / "setup.sh"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
BIN = Path(sys.executable).parent
SCHEMAS = [
    (ACTION / "action.yml", "vendor.github-actions"),
    *((path, "vendor.github-workflows") for path in WORKFLOWS),
    *((path, "custom.github-workflows-require-timeout") for path in WORKFLOWS),
]
INPUTS = {
    "TORCH": "2.13.0",
    "TORCH_INDEX": "",
    "NPUSIM": str(ROOT),
    "EXTRAS": "pytest",
    "DEVICES": "",
    "MEMORY": "",
    "AS_CUDA": "false",
}
# Stands for python: writes down how pip is called, and knows the version.
PYTHON = """#!/bin/sh
case "$1" in -m) shift; echo "$@" >>"$PIP_LOG" ;; -c) echo 1.2.3 ;; esac
"""
NPUSIM = "#!/bin/sh\nenv | grep ^NPUSIM_ | sort\n"


def load(path):
    return YAML(typ="safe").load(path.read_text())


def test_ci_and_release_have_the_cells_of_the_matrix_that_a_runner_can_have():
    table = tomllib.loads((ROOT / "tools" / "matrix.toml").read_text())["cells"].values()
    cells = [(c["torch"], c["python"][6:]) for c in table if c["machine"] == "host"]
    for name, job in (("ci", "matrix"), ("release", "wheels")):
        chosen = load(ROOT / f".github/workflows/{name}.yml")["jobs"][job]["strategy"]["matrix"]
        assert [(c["torch"], c["python"]) for c in chosen["include"]] == cells, name


@pytest.fixture
def setup(tmp_path):
    """Runs the script with inputs; returns how it ended, the pip calls and what it wrote."""
    for name, text in (("python", PYTHON), ("npusim", NPUSIM)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    files = {name: tmp_path / name for name in ("PIP_LOG", "GITHUB_ENV", "GITHUB_OUTPUT")}

    def run(**inputs):
        for path in files.values():
            path.write_text("")
        variables = {f"SETUP_{name}": value for name, value in (INPUTS | inputs).items()}
        variables |= {name: str(path) for name, path in files.items()}
        variables["PATH"] = f"{tmp_path}{os.pathsep}{os.defpath}"
        done = subprocess.run(
            ["bash", SCRIPT], env=variables, cwd=tmp_path, capture_output=True, text=True
        )
        calls = files["PIP_LOG"].read_text().splitlines()
        pip = [call.removeprefix("pip --disable-pip-version-check --quiet ") for call in calls]
        written = {name: path.read_text().split() for name, path in files.items()}
        return done, pip, written

    return run


@pytest.mark.parametrize(("path", "schema"), SCHEMAS, ids=lambda value: Path(str(value)).name)
def test_the_yaml_is_valid(path, schema):
    command = [BIN / "check-jsonschema", "--builtin-schema", schema, path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", [SCRIPT, ROOT / ".ci" / "run"], ids=shown)
def test_shellcheck_has_no_complaint(path):
    done = subprocess.run([BIN / "shellcheck", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_hadolint_has_no_complaint_but_about_pins():
    newest_is_wanted = ["--ignore", "DL3008", "--ignore", "DL3013"]
    command = [BIN / "hadolint", *newest_is_wanted, ROOT / "Dockerfile"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_input_reaches_the_script_and_the_page():
    action = load(ACTION / "action.yml")
    (step,) = (step for step in action["runs"]["steps"] if "setup.sh" in step.get("run", ""))
    passed = {name: re.search(r"inputs\.([a-z-]+)", text)[1] for name, text in step["env"].items()}
    assert set(passed.values()) | {"python-version"} == set(action["inputs"])
    assert set(passed) == set(re.findall(r"SETUP_[A-Z_]+[A-Z]", SCRIPT.read_text()))
    assert set(passed) == {f"SETUP_{name}" for name in INPUTS}
    page = (ROOT / "docs" / "use" / "ci.md").read_text()
    assert set(re.findall(r"^\| `([a-z-]+)` \|", page, re.M)) >= set(action["inputs"])


def test_workflows_use_make_targets_and_inputs_that_exist():
    inputs = set(load(ACTION / "action.yml")["inputs"])
    targets = set(re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)[1].split())
    steps = [
        step for path in WORKFLOWS for job in load(path)["jobs"].values() for step in job["steps"]
    ]
    ours = [step for step in steps if step.get("uses", "").endswith("setup-npusim")]
    assert ours
    assert all(set(step["with"]) <= inputs for step in ours)
    made = {target for step in steps for target in re.findall(r"make (\S+)", step.get("run", ""))}
    assert made
    assert made <= targets


def test_wheels_of_a_folder_come_from_nowhere_else(setup, tmp_path):
    (tmp_path / "my dist").mkdir()
    (tmp_path / "my dist" / "torch_npusim-0.1.0-cp311-cp311-linux_x86_64.whl").touch()
    done, pip, written = setup(NPUSIM="my dist", EXTRAS="pytest,lab", TORCH_INDEX="file:///index")
    assert done.returncode == 0, done.stdout + done.stderr
    assert pip == [
        "install --index-url file:///index torch==2.13.0",
        "install --no-index --no-deps --find-links my dist torch-npusim npusim-lab",
        "install --find-links my dist torch-npusim[pytest,lab]",
    ]
    assert written["GITHUB_ENV"] == []
    assert written["GITHUB_OUTPUT"] == ["version=1.2.3"]


def test_a_folder_of_source_is_built(setup):
    _, pip, _ = setup(EXTRAS="pytest,lab")
    assert pip == [
        "install torch==2.13.0",
        "install cmake ninja pybind11>=3.0",
        f"install --no-build-isolation {ROOT}[pytest,lab] {ROOT}/lab",
    ]


def test_the_device_is_set_up_for_the_job_and_for_the_doctor(setup):
    done, _, written = setup(DEVICES="4", MEMORY="512MiB", AS_CUDA="true")
    expected = ["NPUSIM_DEVICE_COUNT=4", "NPUSIM_DEVICE_MEMORY=512MiB", "NPUSIM_AS_CUDA=1"]
    assert written["GITHUB_ENV"] == expected
    assert done.stdout.split() == sorted(expected)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"NPUSIM": "dits"}, "npusim: 'dits' is no folder with wheels"),
        ({"NPUSIM": "."}, "npusim: '.' is no folder with wheels"),
        ({"AS_CUDA": "yes"}, "as-cuda: 'yes' is neither true nor false"),
    ],
)
def test_a_wrong_input_is_named(setup, inputs, message):
    done, _, written = setup(**inputs)
    assert done.returncode == 1
    assert f"::error title=setup-npusim::{message}" in done.stdout
    assert written["GITHUB_OUTPUT"] == []


def test_readme_s_example_is_one_that_the_trial_of_the_wheels_understands():
    trial = runpy.run_path(str(ROOT / "tools" / "try_wheels.py"))
    inputs, command, test = trial["ci_example"]()
    assert set(inputs) <= set(load(ACTION / "action.yml")["inputs"])
    assert test.startswith(f"# {command.split()[-1]}\n")
    highest = max(int(index) for index in re.findall(r"npusim:(\d+)", test))
    assert highest < inputs["devices"]
