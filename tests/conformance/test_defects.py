# SPDX-License-Identifier: BSD-3-Clause
"""The first fifteen defects are found where they are, and nowhere else; a sample of the rest."""

import fnmatch
import json

import pytest
from conformance.defects import DEFECTS as ALL
from pages import mutations
from processes import python, without_npusim
from repo.sources import ROOT

HERE = ROOT / "tests" / "conformance"
DEFECTS = {name: defect for name, defect in ALL.items() if defect.catches}
# One of each kind, and quick to find: `tools/pages/mutations.py` asks for all.
SAMPLE = (
    "clamp_loses_nan",
    "gradients_lie_in_rows",
    "index_fill_checks_nothing",
    "infinite_gradients_are_not_found",
    "randn_repeats_itself",
    "scalars_promote_by_size",
)


# It starts a process, which takes longer on a busy machine than a case of run_kit.py may.
FRESH = "contract:rng/a_seed_before_the_first_use_counts"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """{defect: {case: status}} of the kit's runs; "whole" is the device without a defect."""
    directory = tmp_path_factory.mktemp("defects")
    path = f"{ROOT}:{ROOT / 'conformance'}:{HERE}"
    environment = without_npusim(PYTHONPATH=path, OMP_NUM_THREADS="1")
    script = HERE / "run_kit.py"
    python(script, directory, env=environment, timeout=900, check=True)
    return {run.parent.name: statuses(run) for run in directory.glob("*/run.jsonl")}


def statuses(log):
    outcomes = [json.loads(line) for line in log.read_text().splitlines()[1:]]
    return {each["case"]: each["status"] for each in outcomes if each["case"] != FRESH}


def test_there_are_fifteen():
    assert len(DEFECTS) == 15


def test_the_whole_device_passes(runs):
    assert set(runs["whole"].values()) <= {"pass", "upstream", "n/a"}


@pytest.mark.parametrize("defect", DEFECTS.values(), ids=DEFECTS)
def test_a_defect_is_caught_where_it_is_and_nowhere_else(defect, runs):
    caught = {
        case: status for case, status in runs[defect.name].items() if status != runs["whole"][case]
    }
    unseen = [glob for glob in defect.catches if not fnmatch.filter(caught, glob)]
    assert unseen == [], "the property that is meant to catch it does not"
    meant = {case for glob in defect.catches for case in fnmatch.filter(caught, glob)}
    assert {case: caught[case] for case in caught.keys() - meant} == {}
    assert runs[defect.name].keys() == runs["whole"].keys()


@pytest.mark.parametrize(
    ("defect", "case", "status"),
    [
        ("crash", "op:lgamma/forward/int8", "crash"),
        ("hang", "op:erfc/forward/uint8", "timeout"),
        ("silent_fallback", "op:i0/forward/float32", "fallback-pass"),
        ("silent_fallback", "op:i0/fallback/float32", "fail"),
    ],
)
def test_the_status_says_what_became_of_a_case(defect, case, status, runs):
    assert runs[defect][case] == status


def test_there_are_a_hundred_of_three_kinds():
    groups = [defect.group for defect in ALL.values()]
    assert len(groups) >= 100
    assert groups.count("linked") >= 40
    assert groups.count("blind") >= 20
    assert all(defect.link for defect in ALL.values() if defect.group == "linked")
    assert all(defect.says.endswith(".") for defect in ALL.values())


def test_a_sample_is_found(tmp_path):
    command = [mutations.__file__, *SAMPLE, "--out", str(tmp_path)]
    done = python(*command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(mutations.statuses(tmp_path, "whole"))
