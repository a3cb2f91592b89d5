# SPDX-License-Identifier: BSD-3-Clause
"""PyTorch's kind of test files: found, isolated, triaged and named without the device."""

import subprocess
import sys
from pathlib import Path

import pytest

from npusim_conformance import log
from npusim_conformance.verdict import Status

FILES = Path(__file__).parent / "upstream_style"


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """(finished process, outcomes) of a run over all files."""
    out = tmp_path_factory.mktemp("upstream")
    kit = [sys.executable, "-m", "npusim_conformance", "upstream", str(FILES)]
    device = ["--device", "npusim", "--import", "torch_npusim", "--timeout", "3"]
    done = subprocess.run(
        [*kit, *device, "--quiet", "--out", str(out)],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    return done, log.read(out).outcomes


def test_each_test_has_its_status(result):
    done, outcomes = result
    assert done.returncode == 1, done.stderr
    assert {name: outcome.status for name, outcome in outcomes.items()} == {
        "upstream:test_arithmetic.py/TestArithmetic.test_add_device_float32": Status.PASS,
        "upstream:test_arithmetic.py/TestArithmetic.test_add_device_int64": Status.PASS,
        "upstream:test_arithmetic.py/TestArithmetic.test_wrong_everywhere_device": Status.UPSTREAM,
        "upstream:test_arithmetic.py/TestArithmetic.test_wrong_on_the_device_device": Status.FAIL,
        "upstream:test_arithmetic.py/TestArithmetic.test_for_another_device_device": Status.NA,
        "upstream:test_arithmetic.py/TestArithmetic.test_known_failure_device": Status.UPSTREAM,
        "upstream:test_arithmetic.py/TestArithmetic.test_described_operator_neg_device_float32": (
            Status.PASS
        ),
        "upstream:test_arithmetic.py/TestSecondClass.test_zeros_device": Status.PASS,
        "upstream:test_misbehaving.py/TestMisbehaving.test_a_crash_device": Status.CRASH,
        "upstream:test_misbehaving.py/TestMisbehaving.test_b_hang_device": Status.TIMEOUT,
        "upstream:test_misbehaving.py/TestMisbehaving.test_c_fine_device": Status.PASS,
    }


def test_a_skipped_test_says_why(result):
    outcomes = result[1]
    name = "upstream:test_arithmetic.py/TestArithmetic.test_for_another_device_device"
    assert "Only runs on cuda" in outcomes[name].message


def test_a_file_that_does_not_load_is_named(result):
    assert "test_unloadable.py: ImportError: cannot import name 'no_such_module'" in (
        result[0].stderr
    )
