# SPDX-License-Identifier: BSD-3-Clause
"""PyTorch's kind of test files: found, isolated, triaged and named without the device."""

from pathlib import Path

import pytest
from processes import python

from npusim_conformance.record import log
from npusim_conformance.upstream import twin
from npusim_conformance.verdict import Status

FILES = Path(__file__).parent / "upstream_style"

STATUSES = {
    "test_arithmetic.py/TestArithmetic.test_add_device_float32": Status.PASS,
    "test_arithmetic.py/TestArithmetic.test_add_device_int64": Status.PASS,
    "test_arithmetic.py/TestArithmetic.test_wrong_everywhere_device": Status.UPSTREAM,
    "test_arithmetic.py/TestArithmetic.test_wrong_on_the_device_device": Status.FAIL,
    "test_arithmetic.py/TestArithmetic.test_another_failure_hides_it_device": Status.FAIL,
    "test_arithmetic.py/TestArithmetic.test_other_samples_hide_it_device": Status.FAIL,
    "test_arithmetic.py/TestArithmetic.test_for_another_device_device": Status.NA,
    "test_arithmetic.py/TestArithmetic.test_known_failure_device": Status.XFAIL,
    "test_arithmetic.py/TestArithmetic.test_described_operator_neg_device_float32": Status.PASS,
    "test_arithmetic.py/TestSecondClass.test_zeros_device": Status.PASS,
    "test_hanging_twin.py/TestHangingTwin.test_fine_device": Status.PASS,
    "test_hanging_twin.py/TestHangingTwin.test_hang_device": Status.PASS,
    "test_host.py/TestHost.test_right": Status.PASS,
    "test_host.py/TestHost.test_warnings_are_seen": Status.PASS,
    "test_host.py/TestHost.test_wrong_everywhere": Status.UPSTREAM,
    "test_host.py/TestHost.test_minds_the_backend": Status.FAIL,
    "test_host.py/TestHost.test_another_failure_hides_it": Status.FAIL,
    "test_host.py/TestHost.test_another_place": Status.FAIL,
    "test_host.py/TestHost.test_expected_failure_passes_there": Status.XPASS,
    "test_host.py/TestHost.test_expected_failure_passes": Status.UPSTREAM,
    "test_misbehaving.py/TestMisbehaving.test_a_crash_device": Status.CRASH,
    "test_misbehaving.py/TestMisbehaving.test_b_hang_device": Status.TIMEOUT,
    "test_misbehaving.py/TestMisbehaving.test_c_fine_device": Status.PASS,
    "test_misbehaving.py/TestMisbehaving.test_d_twin_crashes_device": Status.FAIL,
    "test_misbehaving.py/TestMisbehaving.test_e_wrong_everywhere_device": Status.UPSTREAM,
    "test_one_device.py/TestOnlyThere.test_wrong_everywhere_device": Status.UPSTREAM,
    "test_one_device.py/TestOnlyThere.test_wrong_there_device": Status.FAIL,
    "test_one_device.py/GPUTests.test_shape_device": Status.UPSTREAM,
    "test_one_device.py/GPUTests.test_kind_device": Status.FAIL,
}


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """(finished process, outcomes) of a run over all files; the backend loads with torch."""
    out = tmp_path_factory.mktemp("upstream")
    kit = ["-m", "npusim_conformance", "upstream", str(FILES)]
    done = python(
        *kit, "--device", "npusim", "--timeout", "3", "--quiet", "--out", out, timeout=800
    )
    return done, log.read(out).outcomes


def test_each_test_has_its_status(result):
    done, outcomes = result
    assert done.returncode == 1, done.stderr
    statuses = {name: outcome.status for name, outcome in outcomes.items()}
    assert statuses == {f"upstream:{name}": status for name, status in STATUSES.items()}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("test_arithmetic.py/TestArithmetic.test_for_another_device_device", "Only runs on cuda"),
        ("test_arithmetic.py/TestArithmetic.test_known_failure_device", "the test expects to fail"),
        (
            "test_arithmetic.py/TestArithmetic.test_another_failure_hides_it_device",
            "ValueError: of the device (the CPU fails otherwise: RuntimeError: of the CPU)",
        ),
        ("test_host.py/TestHost.test_wrong_everywhere", "on the CPU too"),
        (
            "test_misbehaving.py/TestMisbehaving.test_d_twin_crashes_device",
            "the device's (the CPU's twin of it dies)",
        ),
    ],
)
def test_a_message_says_why(name, words, result):
    assert words in result[1][f"upstream:{name}"].message


@pytest.mark.parametrize(
    "line",
    [
        "8 of 29 tests are in classes that name no device",
        "1 skipped by the test: Only runs on cuda",
        "2 test_one_device.py, TestOnlyElsewhere: made for cuda, xpu",
        "2 test_one_device.py, CpuTests: made for cpu",
        "0 test_skips_itself.py, all: the file skips itself: requires another world",
        "file test_unloadable.py: ImportError: cannot import name 'no_such_module'",
    ],
)
def test_what_was_not_run_is_said_at_the_end(line, result):
    assert line in result[0].stderr


def test_a_file_that_does_not_load_is_a_failure(tmp_path):
    kit = ["-m", "npusim_conformance", "upstream"]
    files = [str(FILES / "test_unloadable.py"), str(FILES / "test_host.py")]
    done = python(
        *kit, *files, "--tests", "*test_right", "--device", "npusim", "--out", tmp_path, timeout=200
    )
    assert "1 executed: 1 pass" in done.stdout
    assert "7 not chosen by --tests" in done.stderr
    assert done.returncode == 1


def test_a_twin_that_hangs_gives_no_answer(monkeypatch):
    name = "upstream:test_hanging_twin.py/TestHangingTwin."
    fine = twin.ask(str(FILES), f"{name}test_fine_device")
    assert fine is not None
    assert fine["status"] == Status.PASS
    monkeypatch.setattr(twin, "TWIN_SECONDS", 1)
    with pytest.raises(twin.NoAnswer, match="hangs"):
        twin.ask(str(FILES), f"{name}test_hang_device")
    assert twin._process is None
