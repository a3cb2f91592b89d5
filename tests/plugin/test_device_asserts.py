# SPDX-License-Identifier: BSD-3-Clause
"""Under the plugin a device-side assert takes the device until the end of its test."""

import pytest

TESTS = """
    import pytest
    import torch

    def assert_once(index=0):
        x = torch.ones(4, device=f"cuda:{index}")
        with pytest.raises(torch.AcceleratorError, match="device-side assert triggered"):
            x[torch.tensor([9], device=x.device)]
        return x

    def test_1_goes_on():
        x = assert_once()
        for _ in range(2):
            with pytest.raises(torch.AcceleratorError, match="device-side assert triggered"):
                x + 1
        with pytest.raises(torch.AcceleratorError, match="device-side assert triggered"):
            torch.cuda.synchronize()
        x.cpu()

    def test_2_the_next_one_starts_clean():
        assert (torch.ones(2, device="cuda") + 1).sum().item() == 4

    def test_3_stops():
        assert_once()

    def test_4_uses_another_device():
        assert_once(0)
        assert (torch.ones(2, device="cuda:1") + 1).sum().item() == 4

    @pytest.fixture
    def reads_at_the_end():
        x = torch.ones(2, device="cuda")
        yield
        x.cpu()

    def test_5_with_a_fixture(reads_at_the_end):
        assert_once()

    def test_6_does_not_catch_it(reads_at_the_end):
        torch.ones(4, device="cuda")[torch.tensor([9], device="cuda")]
"""
OPTIONS = "--npusim-as-cuda", "--npusim-devices=2"
SAYS = "tests met a device-side assert: on a GPU the process could do nothing after the first"


@pytest.fixture(scope="module")
def run(run_pytest):
    return run_pytest({"test_it.py": TESTS}, *OPTIONS)


def test_a_test_that_goes_on_fails(run):
    assert ("test_1_goes_on", "FAILED") in run.outcomes
    assert "x.cpu()" in run.section("test_1_goes_on")
    assert f"5 {SAYS}" in run.output


def test_others_pass(run):
    assert run.passed() >= {
        "test_2_the_next_one_starts_clean",
        "test_3_stops",
        "test_4_uses_another_device",
    }
    assert not {name for name, outcome in run.outcomes if outcome == "ERROR"} - {
        "test_5_with_a_fixture"
    }


def test_a_fixture_finds_the_device_lost_unless_the_test_failed(run):
    assert ("test_5_with_a_fixture", "ERROR") in run.outcomes
    assert ("test_6_does_not_catch_it", "FAILED") in run.outcomes


def test_the_variable_lets_tests_go_on(run_pytest):
    run = run_pytest({"test_it.py": TESTS}, *OPTIONS, environment={"NPUSIM_DEVICE_ASSERT": "now"})
    assert "test_5_with_a_fixture" in run.passed()
    assert SAYS not in run.output


def test_a_late_assert_that_nobody_waits_for_is_told_at_the_end(run_pytest):
    tests = """
        import torch

        def test_late():
            torch.ones(4, device="cuda")[torch.tensor([9], device="cuda")]

        def test_next():
            assert (torch.ones(2, device="cuda") + 1).sum().item() == 4
    """
    run = run_pytest({"test_it.py": tests}, *OPTIONS, environment={"NPUSIM_DEVICE_ASSERT": "late"})
    assert ("test_late", "ERROR") in run.outcomes
    assert "device-side assert triggered" in run.leak_of("test_late")
    assert "test_next" in run.passed()
