# SPDX-License-Identifier: BSD-3-Clause
"""`npusim profile`: bad scripts are diagnosed, mended ones gain what was predicted."""

import json
from pathlib import Path

import pytest
from processes import python

SCRIPTS = Path(__file__).parent / "scripts"

# Script, device, cause. The edge accelerator is about as fast as this machine's processor, so that
# a loader and its work can be weighed against each other.
BAD = [
    ("loader", "edge-npu", "loader"),
    ("items", "a100-80-sxm", "host_waits"),
    ("copies", "npusim-one", "copies"),
    ("tiny", "npusim-one", "launches"),
    ("precision", "a100-80-sxm", "precision"),
    ("strided", "npusim-one", "strided"),
]
GOOD = [
    ("good_graph", "npusim-one"),
    ("good_loader", "edge-npu"),
    ("good_prefetch", "npusim-one"),
    ("good_products", "a100-80-sxm"),
    ("good_streaming", "a100-80-sxm"),
    ("good_training", "a100-80-sxm"),
]

RUN_ALL = """
import contextlib, io, json, sys
import torch
from torch_npusim.profiling import _page, diagnose, record_script

reports = {}
for script, words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()):
        found = diagnose(record_script(script, words), device=torch.npusim.get_device_name())
    reports[" ".join([script.split("/")[-1][:-3], *words])] = json.loads(_page.as_json(found))
    torch.set_float32_matmul_precision("highest")
print(json.dumps(reports))
"""


@pytest.fixture(scope="module")
def reports():
    """The reports of all scripts: one process per device."""

    found = {}
    for spec in ("edge-npu", "a100-80-sxm", "npusim-one"):
        runs = [
            (f"{SCRIPTS}/{name}.py", words)
            for name, s, _ in BAD
            if s == spec
            for words in ([], ["mended"])
        ]
        runs += [(f"{SCRIPTS}/{name}.py", []) for name, s in GOOD if s == spec]
        done = python("-c", RUN_ALL, json.dumps(runs), variables={"NPUSIM_SPEC": spec})
        assert done.returncode == 0, done.stderr
        found |= json.loads(done.stdout)
    return found


@pytest.mark.parametrize(("script", "cause"), [(row[0], row[2]) for row in BAD])
def test_a_bad_script_is_diagnosed_and_its_remedy_gains_what_was_predicted(script, cause, reports):
    bad, mended = reports[script], reports[f"{script} mended"]
    first = bad["advice"][0]
    assert first["cause"] == cause
    assert f"{script}.py" in " ".join(first["lines"])
    gained = 1 - mended["span_ns"] / bad["span_ns"]
    assert gained == pytest.approx(first["gain"], rel=0.2)
    # The mended loader is quick, and still this machine's.
    left = [advice["cause"] for advice in mended["advice"]]
    assert cause not in left or cause == "loader"


@pytest.mark.parametrize("script", [name for name, _ in GOOD])
def test_a_good_script_gets_no_advice(script, reports):
    assert reports[script]["advice"] == []


def test_the_loader_is_real_time_and_can_be_scaled():
    from torch.utils.data import DataLoader

    from torch_npusim.profiling import diagnose, record

    with record() as made:
        for _ in DataLoader([1, 2, 3, 4], batch_size=2):
            pass
    assert len(made.waits) == 2
    half, whole = (diagnose(made, loader_scale=scale) for scale in (0.5, 1.0))
    assert half.loader_ns == pytest.approx(whole.loader_ns / 2, abs=2)
    assert whole.device_span_ns == half.device_span_ns


def test_the_heaviest_have_line_bound_and_intensity(reports):
    (heaviest, *_) = reports["precision"]["operators"]
    assert heaviest["name"] == "aten::mm"
    assert heaviest["line"].endswith("precision.py:14")
    assert heaviest["bound"] == "arithmetic"
    assert heaviest["calls"] == 8
    assert heaviest["intensity"] == pytest.approx(2 * 1024**3 / (3 * 4 * 1024**2))
    assert reports["strided"]["operators"][0]["bound"] == "memory"
    assert reports["tiny"]["operators"][0]["bound"] == "launch"


def test_there_are_six_of_each():
    assert len(BAD) == len(GOOD) == 6
