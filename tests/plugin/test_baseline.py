# SPDX-License-Identifier: BSD-3-Clause
"""--npusim-baseline: what is wrong today is listed, what is new fails."""

TESTS = """
    import torch

    KEPT = []

    def test_waits():
        import steps
        steps.wait()

    def test_leaks():
        KEPT.append(torch.ones(3, device="cuda"))

    def test_product():
        x = torch.ones(2, 2, dtype=torch.long, device="cuda")
        x @ x

    def test_wrong():
        assert 1 == 2

    def test_numpy():
        torch.ones(2, device="cuda").numpy()

    def test_right():
        torch.ones(3, device="cuda").sum()
"""
STEPS = """
    import torch

    def wait():
        return torch.ones(3, device="cuda").sum().item()
"""
LISTED = """\
AssertionError test_it.py::test_wrong
TypeError test_it.py::test_numpy
leak test_it.py::test_leaks
refusal test_it.py::test_product
wait test_it.py::test_waits
"""
OPTIONS = "--npusim-as-cuda", "--npusim-sync=error", "--npusim-baseline=known.txt"


def test_a_first_run_writes_the_file_and_the_next_fails_for_what_is_new(run_pytest):
    files = {"test_it.py": TESTS, "steps.py": STEPS}
    first = run_pytest(
        {**files, "conftest.py": "def pytest_unconfigure(): print(open('known.txt').read())"},
        *OPTIONS,
    )
    listed = [line for line in first.output.splitlines() if "  # " in line]
    assert [line.partition("  # ")[0] for line in listed] == LISTED.splitlines()
    assert listed[0].endswith("assert 1 == 2")
    assert first.code == 0
    assert "2 passed, 5 xfailed" in first.output
    fewer = LISTED.replace("wait test_it.py::test_waits\n", "leak test_it.py::test_right\n")
    second = run_pytest({**files, "known.txt": fewer}, *OPTIONS)
    assert "1 failed" in second.output
    assert ("test_waits", "FAILED") in second.outcomes
    assert "known.txt: no longer so: leak test_it.py::test_right" in second.output
