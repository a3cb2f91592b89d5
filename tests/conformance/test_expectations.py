# SPDX-License-Identifier: BSD-3-Clause
"""The expectations file: what it means, and what it refuses."""

import pytest

from npusim_conformance.backend.expectations import ExpectationsError, load
from npusim_conformance.case import Case, matches
from npusim_conformance.cases import catalog
from npusim_conformance.cases.selection import Selection
from npusim_conformance.verdict import ErrorSize, Outcome, Status

NAMES = ["op:add/forward/float32", "op:add/forward/int64", "op:sub/forward/float32"]


@pytest.fixture
def written(tmp_path):
    def written(text):
        path = tmp_path / "chip.toml"
        path.write_text(text)
        return load(path)

    return written


def judged(expectations, case, status):
    return expectations.judge(Outcome(case, status, "what was seen"))


def test_an_empty_file_expects_nothing(written):
    expectations = written("")
    assert judged(expectations, NAMES[0], Status.FAIL).status is Status.FAIL
    assert not expectations.bitwise


def test_a_failure_may_be_expected_and_a_pass_then_not(written):
    expectations = written('[[xfail]]\ncases = ["op:add/*"]\nreason = "adds wrongly"\nissue = "#1"')
    failed = judged(expectations, NAMES[0], Status.FAIL)
    assert (failed.status, failed.message) == (Status.XFAIL, "adds wrongly (#1): what was seen")
    assert judged(expectations, NAMES[0], Status.CRASH).status is Status.XFAIL
    passed = judged(expectations, NAMES[1], Status.PASS)
    assert passed.status is Status.XPASS
    assert "Remove the expectation" in passed.message
    assert judged(expectations, NAMES[2], Status.FAIL).status is Status.FAIL
    assert judged(expectations, NAMES[0], Status.NA).status is Status.NA


def test_dtypes_can_be_left_out(written):
    expectations = written(
        '[dtypes]\nunsupported = ["complex32"]\n[dtypes.operators]\n"linalg.*" = ["float32"]'
    )
    assert expectations.unsupported("add", "complex32") == "the backend does not claim complex32"
    assert "linalg.*" in expectations.unsupported("linalg.svd", "float64")
    assert expectations.unsupported("linalg.svd", "float32") == ""
    assert expectations.unsupported("add", None) == ""


def test_cases_can_be_skipped_and_tolerated(written):
    expectations = written(
        '[[skip]]\ncases = "op:sub/*"\nreason = "hangs"\n'
        '[[tolerance]]\ncases = ["op:add/*"]\nrtol = 0.5\nreason = "coarse"'
    )
    assert expectations.skipped(NAMES[2]) == "hangs"
    assert expectations.skipped(NAMES[0]) == ""
    assert expectations.tolerances(NAMES[0]) == (0.5, None)
    assert expectations.tolerances(NAMES[2]) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[device", "not TOML"),
        ("[devise]", "unknown key 'devise'"),
        ('[device]\ncolour = "red"', "unknown key 'colour'"),
        ('[device]\ncompare = "roughly"', "expected one of"),
        ("[device]\nname = 3", "expected a str"),
        ('[[xfail]]\ncases = ["op:add/*"]', "reason is missing"),
        ('[[skip]]\nreason = "why"', "cases is missing"),
        ('[[xfail]]\ncases = ["a"]\nreason = "b"\nrtol = 1', "unknown key 'rtol'"),
        ('xfail = ["op:add/*"]', "expected a table"),
    ],
)
def test_a_wrong_file_is_refused_by_name(written, text, said):
    with pytest.raises(ExpectationsError, match=said) as caught:
        written(text)
    assert "chip.toml" in str(caught.value)


def test_patterns_that_match_nothing_are_refused(written):
    expectations = written('[[xfail]]\ncases = ["op:add/*", "op:ad/*"]\nreason = "why"')
    with pytest.raises(ExpectationsError, match=r"\[\[xfail\]\] names 'op:ad/\*'"):
        expectations.check_patterns(NAMES, "chip.toml")


def test_names_go_round():
    for name in (*NAMES, "contract:stream/wait", "upstream:nn/test_x.py/TestX.test_y"):
        assert str(Case.parse(name)) == name


@pytest.mark.parametrize("name", ["", "add", "op:add", "thing:add/x", "op:/x", "op:a//b"])
def test_what_is_no_name_is_refused(name):
    with pytest.raises(ValueError, match="is not the name of a case"):
        Case.parse(name)


def test_globs_choose_and_exclude():
    assert matches("linalg.svd", "linalg.*")
    assert not matches("linalg.svd", "linalg.*,~*svd")
    assert matches("add", "~linalg.*")
    assert not matches("add", "sub, mul")
    assert matches("add", "")


def test_shards_are_a_partition():
    everything = catalog.cases(Selection("smoke", properties="forward"))
    parts = [
        catalog.cases(Selection("smoke", properties="forward", shard=(number, 3)))
        for number in (1, 2, 3)
    ]
    assert sorted(sum(parts, [])) == sorted(everything)  # noqa: RUF017
    assert all(parts)


def test_outcomes_go_round():
    outcome = Outcome(
        NAMES[0], Status.FAIL, "wrong", samples=3, error=ErrorSize(1.0, 2.0), failed_samples=[1]
    )
    assert Outcome.from_json(outcome.to_json()) == outcome
    assert set(Outcome(NAMES[0], Status.PASS).to_json()) == {"case", "status", "attempt"}
