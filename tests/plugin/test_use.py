# SPDX-License-Identifier: BSD-3-Clause
"""How many tests used a device, whether enough did, and a test that first imports torch."""

import pytest

FIRST = """
    KEPT = []

    def test_first_to_import_torch():
        import torch

        KEPT.append(torch.ones(256, device="npusim"))
"""
MIXED = """
    import torch

    def test_on_the_host():
        assert torch.ones(2).sum() == 2

    def test_on_a_device():
        assert torch.ones(2, device="npusim").sum() == 2

    X = torch.zeros(2, device="npusim")

    def test_in_place():
        X.add_(1)

    def test_nothing():
        pass
"""
SILENT = """
    import torch

    def test_that_would_use_cuda():
        device = "cuda" if torch.cuda.is_available() else "cpu"
        assert torch.ones(2, device=device).sum() == 2
"""


def test_the_first_test_that_imports_torch_is_counted_and_checked(run_pytest):
    run = run_pytest({"test_it.py": FIRST}, "--npusim")
    assert run.outcomes == {
        ("test_first_to_import_torch", "PASSED"),
        ("test_first_to_import_torch", "ERROR"),
    }, run.output
    assert "global variable 'KEPT' of module test_it" in run.leak_of("test_first_to_import_torch")
    assert "--npusim-as-cuda" not in run.section("npusim")
    assert "1 of 1 tests used a device, and 1 left memory on it" in run.section("npusim")


def test_tests_that_used_a_device_are_counted(run_pytest):
    run = run_pytest({"test_it.py": MIXED}, "--npusim")
    assert run.code == 0, run.output
    assert "2 of 4 tests used a device, and 0 left memory on it" in run.section("npusim")


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--npusim"], 0),
        (["--npusim-require-device"], 1),
        (["--npusim-require-device", "--npusim-as-cuda"], 0),
        (["--npusim-require-device=2", "--npusim-as-cuda"], 1),
    ],
    ids=["not asked", "none", "enough", "too few"],
)
def test_a_run_that_stays_on_the_cpu_fails_if_asked(run_pytest, options, code):
    run = run_pytest({"test_it.py": SILENT}, *options)
    assert run.passed() == {"test_that_would_use_cuda"}
    assert run.code == code, run.output
    said = "of 1 tests used a device; the others ran on the CPU" in run.section("npusim")
    assert said == (code == 1)


def test_modules_may_be_allowed_to_wait(run_pytest):
    files = {
        "test_it.py": """
            import torch
            from package import metrics

            def test_it():
                metrics.value(torch.ones(2, device="npusim"))
        """,
        "pytest.ini": "[pytest]\npythonpath = .\nnpusim_sync_allow = package\n",
    }
    library = "def value(x):\n    return x.sum().item()\n"
    refused = run_pytest(
        {**files, "pytest.ini": "[pytest]\npythonpath = .\n", "package/metrics.py": library},
        "--npusim-sync=error",
    )
    assert refused.passed() == set(), refused.output
    allowed = run_pytest({**files, "package/metrics.py": library}, "--npusim-sync=error")
    assert allowed.passed() == {"test_it"}, allowed.output


def test_a_run_that_stays_on_the_cpu_names_the_flag_that_helps(run_pytest):
    test = """
        import torch

        def test_a_sum():
            device = "cuda" if torch.cuda.is_available() else "cpu"
            assert torch.ones(2, device=device).sum() == 2
    """
    run = run_pytest({"test_it.py": test}, "--npusim")
    assert run.code == 0
    assert "no test used a device" in run.section("npusim")
    assert "run it with --npusim-as-cuda" in run.section("npusim")
    alias = run_pytest({"test_it.py": test}, "--npusim-as-cuda")
    assert "1 of 1 tests used a device" in alias.section("npusim")
