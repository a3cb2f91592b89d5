# SPDX-License-Identifier: BSD-3-Clause
"""The marker's limits for one test, and what a host synchronisation does."""

import pytest

LIBRARY = """
    import torch

    def step(x):
        x.sum().item()
        return x

    def show(x):
        return repr(x)
"""
TESTS = """
    import pytest
    import torch
    import library

    @pytest.fixture
    def x():
        return torch.ones(4, device="npusim")

    @pytest.mark.npusim(memory="1MiB")
    def test_small_device():
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(2 << 20, dtype=torch.uint8, device="npusim:1")

    def test_the_limit_is_gone():
        torch.empty(2 << 20, dtype=torch.uint8, device="npusim:1")

    @pytest.mark.npusim(peak="1KiB")
    def test_peak_within():
        torch.empty(1 << 10, dtype=torch.uint8, device="npusim")

    @pytest.mark.npusim(peak="1KiB")
    def test_peak_beyond():
        torch.empty(1 << 20, dtype=torch.uint8, device="npusim")

    @pytest.mark.npusim(max_launches=2)
    def test_launches_within(x):
        x + 1
        x + 2

    @pytest.mark.npusim(max_launches=2)
    def test_launches_beyond(x):
        for _ in range(3):
            x = x + 1

    @pytest.mark.npusim(devices=2)
    def test_enough_devices():
        pass

    @pytest.mark.npusim(devices=9)
    def test_too_few_devices():
        pass

    @pytest.mark.npusim(sync="error")
    def test_library_waits(x):
        library.step(x)

    @pytest.mark.npusim(sync="error")
    def test_own_waits_are_allowed(x):
        assert x.sum() == 4
        assert repr(x)

    @pytest.mark.npusim(sync="error", allow="aten::_local_scalar_dense")
    def test_an_operation_is_allowed(x):
        library.step(x)

    @pytest.mark.npusim(sync="error", allow=["*/library.py"])
    class TestAllowedFile:
        def test_a_file_is_allowed(self, x):
            library.step(x)

        @pytest.mark.npusim(sync="off")
        def test_the_nearest_marker_wins(self, x):
            library.show(x)

    @pytest.mark.npusim(sync="error")
    def test_failing_without_a_wait(x):
        assert (x == 2).all()

    def test_mode_is_put_back():
        assert torch.npusim.get_sync_debug_mode() == 0

    def test_recording(npusim_syncs, x):
        x[0].item()
        library.step(x)
        assert npusim_syncs.total() == 2

    @pytest.mark.npusim(speed=3)
    def test_wrong_word():
        pass
"""


@pytest.fixture(scope="module")
def run(run_pytest):
    files = {"library.py": LIBRARY, "test_it.py": TESTS}
    return run_pytest(files, "--npusim", "--npusim-sync=count")


@pytest.fixture(scope="module", autouse=True)
def _shown_on_failure(run):
    print(run.output)


def test_outcomes(run):
    outcomes = dict(run.outcomes)
    bad = {name: outcome for name, outcome in outcomes.items() if outcome != "PASSED"}
    assert bad == {
        "test_peak_beyond": "FAILED",
        "test_launches_beyond": "FAILED",
        "test_library_waits": "FAILED",
        "test_failing_without_a_wait": "FAILED",
        "test_wrong_word": "ERROR",
    }
    assert len(run.passed()) == 11
    assert "needs 9 npusim devices, got 2; pass --npusim-devices=9" in run.output


def test_a_peak_is_told_with_its_limit(run):
    text = run.section("test_peak_beyond")
    assert "1.00 MiB more than before the test; at most 1.00 KiB are allowed" in text


def test_launches_are_told_with_names_and_lines(run):
    text = run.section("test_launches_beyond")
    assert "3 launches, at most 2 expected\n  3 x aten::add.Tensor at " in text
    assert "test_it.py:" in text


def test_the_option_limits_the_launches_of_all_tests(run_pytest):
    files = {
        "test_it.py": """
            import torch

            def test_two():
                torch.ones(2, device="npusim") + 1

            def test_one():
                torch.ones(2, device="npusim")
        """
    }
    run = run_pytest(files, "--npusim", "--npusim-max-launches=1")
    assert run.outcomes == {("test_two", "FAILED"), ("test_one", "PASSED")}, run.output
    assert (
        "npusim-max-launches to be a number"
        in run_pytest(files, "--npusim", "--npusim-max-launches=few").output
    )


def test_an_error_shows_the_line_that_waits(run):
    text = run.section("test_library_waits")
    assert "x.sum().item()" in text
    assert "called a synchronizing npusim operation: .item()" in text


def test_a_failing_assertion_prints_its_tensors(run):
    assert "tensor([1., 1., 1., 1.], device='npusim:0')" in run.section(
        "test_failing_without_a_wait"
    )


def test_a_word_that_is_none_is_named(run):
    text = run.section("ERROR at setup of test_wrong_word")
    words = "memory, devices, sync, allow, peak, max_launches, leaks and seed"
    assert f"the marker takes {words}, by name" in text
    assert "got 'speed'" in text


def test_the_summary_counts_waits_outside_of_the_tests(run):
    text = run.section("npusim")
    lines = [line.split() for line in text.splitlines()]
    assert ["2", "aten::_local_scalar_dense", "library.py:5", "in", "step"] in lines
    assert "host synchronisations outside of the tests' own files: 2" in text
    assert (
        "largest peak: 2097152 bytes more than before, in test_it.py::test_the_limit_is_gone"
        in text
    )


WAITING = {
    "library.py": LIBRARY,
    "test_it.py": """
        import torch
        import library

        def test_it():
            library.step(torch.ones(4, device="npusim"))
    """,
}


def test_waits_can_be_warnings(run_pytest):
    run = run_pytest(WAITING, "--npusim-sync=warn")
    assert run.passed() == {"test_it"}
    assert "library.py:5: UserWarning: called a synchronizing npusim operation" in run.output


@pytest.mark.parametrize("allowed", [None, "aten::_local_scalar_dense", "*/library.py"])
def test_the_ini_file_lists_what_may_wait(run_pytest, allowed):
    lines = ["[pytest]", "pythonpath = .", "npusim_sync = error", "npusim_sync_allow ="]
    lines += [f"    {pattern}" for pattern in ("aten::nonzero", allowed) if pattern]
    run = run_pytest({**WAITING, "pytest.ini": "\n".join(lines)})
    assert run.outcomes == {("test_it", "PASSED" if allowed else "FAILED")}, run.output
