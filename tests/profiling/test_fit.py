# SPDX-License-Identifier: BSD-3-Clause
"""`npusim fit`: whether a script fits, and the parts of its peak."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = str(Path(__file__).parent / "scripts" / "fitted.py")
MIB = 1 << 20


def fit(*words):
    words = [sys.executable, "-m", "torch_npusim.cli", "fit", *words]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200, check=False)
    return done.returncode, done.stdout, done.stderr


def test_the_parts_of_a_peak_and_the_answers_are_listed():
    status, out, _ = fit("--json", "--memory", "1GiB", "--require-fits", SCRIPT, "8")
    found = json.loads(out[out.index("{") :])
    device = found["devices"]["0"]
    assert (status, found["fits"]) == (0, True)
    assert device["capacity"] == 1 << 30
    parts = device["at_peak"]
    assert parts["parameters"] == parts["gradients"] == parts["optimizer state"] == 8 * MIB
    assert 0 <= device["peak_allocated"] - sum(parts.values()) < 1 << 14  # sizes are rounded up
    assert device["peak_reserved"] >= device["peak_allocated"]
    (answer,) = found["answers"]
    assert answer["count"] == 2
    assert answer["place"] == f"{SCRIPT}:14"


def test_a_script_that_does_not_fit_fails_where_that_is_required():
    status, out, _ = fit("--memory", "64MiB", "--require-fits", SCRIPT, "65536")
    assert status == 1
    assert "does not fit" in out
    assert "out of memory" in out
    assert f"{SCRIPT}:11" in out
    status, out, error = fit("--memory", "1GiB", "--max-peak", "16MiB", SCRIPT, "8")
    assert status == 1
    assert "fits" in out
    assert "more than the 0.02 GiB" in error


def test_an_impossible_limit_is_refused_before_the_run():
    status, out, error = fit("--max-peak", "much", SCRIPT, "8")
    assert (status, out) == (2, "")
    assert "npusim fit: --max-peak: expected a number of bytes such as 512MiB" in error


def test_an_error_of_the_script_keeps_the_answer_until_then(tmp_path):
    script = tmp_path / "saves.py"
    script.write_text("""import torch
weights = torch.ones(1 << 20, device="npusim")
torch.save(weights, "weights.pt")
""")
    status, out, _ = fit(str(script))
    assert status == 1
    assert f"ended early, with RuntimeError at {script}:3: a tensor of device npusim:0" in out
    assert "at most 0.004 GiB allocated" in out
