# SPDX-License-Identifier: BSD-3-Clause
"""pytest --npusim-dry: tests run without numbers, and assertions on them are told apart."""

import pytest

TESTS = """
    import torch

    def test_a_large_model():
        layer = torch.nn.Linear(1 << 16, 1 << 16, device="npusim")  # 16 GiB
        layer(torch.ones(2, 1 << 16, device="npusim")).sum().backward()
        assert layer.weight.grad.shape == (1 << 16, 1 << 16)

    def test_asserts_on_a_value():
        x = torch.full((), 3.0, device="npusim")
        assert x.item() == 3

    def test_asks_for_a_value():
        assert torch.ones(3, device="npusim").sum().item() > 0

    def test_is_wrong_anyway():
        assert torch.ones(3, device="npusim").shape == (4,)

    def test_fails_otherwise():
        torch.ones(3, device="npusim").sum().item()
        torch.ones(3, device="npusim") + torch.ones(4, device="npusim")
"""


@pytest.fixture(scope="module")
def run(run_pytest):
    return run_pytest({"test_all.py": TESTS}, "--npusim-dry", "--npusim-memory=64GiB")


def test_a_device_of_any_size_runs_the_tests(run):
    assert {"test_a_large_model", "test_asks_for_a_value"} == run.passed()


def test_an_assertion_on_a_value_is_told_apart(run):
    assert "XFAIL test_all.py::test_asserts_on_a_value - npusim: a dry run has no values" in (
        run.output
    )
    assert "test_all.py:11 was answered" in run.output


def test_other_failures_stay(run):
    failed = {name for name, outcome in run.outcomes if outcome == "FAILED"}
    assert failed == {"test_is_wrong_anyway", "test_fails_otherwise"}
    assert run.code == 1


def test_the_summary_lists_tests_that_asked_for_values(run):
    told = run.section("npusim")
    assert "dry run: 3 of 5 tests asked for values" in told
    assert "1  aten::_local_scalar_dense at " in told
