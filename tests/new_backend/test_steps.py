# SPDX-License-Identifier: BSD-3-Clause
"""`npusim-conformance new-backend`: its six steps build, each getting further.

The steps stand in docs/judge/new_backend.md. After the last one, the kit has no undeclared failure.
"""

import json
import shutil
import time

import pytest
from conformance.test_new_backend import build, package, project, python

from npusim_conformance.cli import main, new_backend

FIXTURES = (project, package, python)

# Of each step: cases that did not pass before it, and pass after it without the CPU.
GAINS = {
    1: ["op:unfold/aliasing/float32", "op:add/autocast/bfloat16"],
    2: ["op:mul/forward/float32", "op:nn.functional.relu/forward/float32"],
    3: ["op:mm/forward/float32", "op:nn.functional.linear/forward/float32"],
    4: ["op:sum/forward/float32", "op:mean/forward/float32"],
    5: [],  # its own test says it: of the operators' samples only some are matrices
    6: ["op:normal.in_place/random/float32"],
}


@pytest.fixture(scope="session")
def walk(python, tmp_path_factory):
    """{step: outcomes of a run of the kit}, from the project as it is written to the last step."""
    place = tmp_path_factory.mktemp("walk")
    folder = place / "torch_mychip"
    assert main(["new-backend", "mychip", "--out", str(folder)]) == 0
    found = {}
    for step in (0, *new_backend.STEPS):
        if step:
            assert main(["new-backend", "mychip", "--out", str(folder), "--step", str(step)]) == 0
        shutil.rmtree(place / "build", ignore_errors=True)
        begun = time.monotonic()
        library = build(folder, place / "build")
        print(f"step {step}: built in {time.monotonic() - begun:.0f} s")
        path = {"PYTHONPATH": str(library)}
        tested = python("-m", "pytest", "-q", "-p", "no:npusim", str(folder / "tests"), **path)
        assert tested.returncode == 0, tested.stdout
        out = place / f"map-{step}"
        operators = {case.split("/")[0] for cases in GAINS.values() for case in cases}
        kit = python(
            *("-m", "npusim_conformance", "run", "--device", "mychip", "--quiet"),
            *("--expect", str(folder / "expectations.toml"), "--out", str(out)),
            *("--max-samples", "4", "--ops", ",".join(sorted(operators))),
            **path,
        )
        assert kit.returncode in (0, 1), kit.stderr
        lines = (out / "run.jsonl").read_text().splitlines()[1:]
        found[step] = {
            one["case"]: one["status"] for one in map(json.loads, lines) if "case" in one
        }
        print(kit.stdout.splitlines()[-2])
    smoke = python(
        *("-m", "npusim_conformance", "run", "--device", "mychip", "--quiet", "--profile", "smoke"),
        *("--expect", str(folder / "expectations.toml"), "--out", str(place / "smoke")),
        **path,
    )
    found["smoke"] = smoke.returncode, smoke.stdout
    return found


@pytest.mark.parametrize("step", new_backend.STEPS)
def test_a_step_gains_what_it_is_for(walk, step):
    for case in GAINS[step]:
        assert walk[step - 1][case] != "pass"
        assert walk[step][case] == "pass"


@pytest.mark.parametrize("step", new_backend.STEPS)
def test_no_step_loses_anything(walk, step):
    right = {"pass", "fallback-pass"}
    before = {case for case, status in walk[step - 1].items() if status in right}
    assert {case for case in before if walk[step][case] not in right} == set()


def test_after_the_last_step_smoke_has_nothing_red(walk):
    status, said = walk["smoke"]
    assert status == 0, said


def test_nothing_ever_crashes(walk):
    statuses = {status for step in (0, *new_backend.STEPS) for status in walk[step].values()}
    assert statuses.isdisjoint({"crash", "timeout"})
