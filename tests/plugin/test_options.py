# SPDX-License-Identifier: BSD-3-Clause
"""Effects of the options, the ini file and the marker, and that nothing changes without them."""

import pytest

ASKED = {
    "conftest.py": "import torch\n",  # which loads the device before any test is seen
    "test_it.py": """
        import torch

        def test_devices(npusim_device, npusim_devices):
            assert torch.npusim.device_count() == 3
            assert npusim_device == torch.device("npusim:0")
            assert [device.index for device in npusim_devices] == [0, 1, 2]

        def test_memory():
            assert torch.npusim.mem_get_info(0)[1] == 64 << 20

        def test_cuda():
            assert torch.cuda.is_available()
            assert torch.ones(2, device="cuda").cuda(1).device == torch.device("npusim:1")

        def test_alignment():
            x = torch.ones(9, device="npusim")
            try:
                x[1:] + 1
            except RuntimeError as error:
                assert "starts at" in str(error)
            else:
                raise AssertionError("not refused")

        def test_seed():
            drawn = torch.rand(3), torch.rand(3, device="npusim").cpu()
            torch.manual_seed(7)
            again = torch.rand(3), torch.rand(3, device="npusim").cpu()
            assert all(map(torch.equal, drawn, again))

        def test_races():
            x = torch.zeros(3, device="npusim")
            try:
                with torch.Stream("npusim"):
                    x + 1
            except torch.npusim.RaceError:
                return
            raise AssertionError("not found")
    """,
}
OPTIONS = [
    "--npusim",
    "--npusim-devices=3",
    "--npusim-memory=64MiB",
    "--npusim-as-cuda",
    "--npusim-strict-align",
    "--npusim-races=error",
    "--npusim-seed=7",
]
ALL = {"test_devices", "test_memory", "test_cuda", "test_alignment", "test_seed", "test_races"}


def test_options_are_in_effect_before_a_conftest_loads_torch(run_pytest):
    run = run_pytest(ASKED, *OPTIONS)
    assert run.passed() == ALL, run.output
    header = "npusim: devices=3, memory=64MiB, as-cuda=True, strict-align=True, races=error, "
    header += "seed=7, leaks=error"
    assert header in run.output


def test_the_option_is_stronger_than_an_environment_without_backends(run_pytest):
    wish = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "NPUSIM_AUTOLOAD": "0"}
    run = run_pytest(ASKED, *OPTIONS, environment=wish)
    assert run.passed() == ALL, run.output


def test_the_ini_file_says_the_same(run_pytest):
    lines = ["[pytest]", *(option.removeprefix("--").replace("-", "_") for option in OPTIONS)]
    ini = "\n".join(line if "=" in line or line[0] == "[" else f"{line}=true" for line in lines)
    run = run_pytest({**ASKED, "pytest.ini": ini})
    assert run.passed() == ALL, run.output


def test_a_worker_of_xdist_gets_the_same(run_pytest):
    run = run_pytest(ASKED, *OPTIONS, "-n1")
    assert run.passed() == ALL, run.output


RACES = """
    import pytest, torch

    @pytest.mark.parametrize("number", [1, 2])
    def test_it(number):
        x = torch.zeros(3, device="npusim")
        with torch.Stream("npusim"):
            for _ in range(2):
                x + 1
        torch.npusim.synchronize()
"""


def test_a_race_is_found_in_each_test_that_has_it(run_pytest):
    run = run_pytest({"test_it.py": RACES}, "--npusim-races=error")
    assert run.outcomes == {("test_it[1]", "FAILED"), ("test_it[2]", "FAILED")}, run.output
    run = run_pytest({"test_it.py": RACES}, "--npusim-races=report")
    assert "2 passed, 2 warnings" in run.output, "not one report in each test"


NOT_ASKED = {
    "test_it.py": """
        import os
        import sys
        import pytest

        def test_nothing_is_imported():
            ours = {"torch", "torch_npusim", "torch_npusim_entry_points.pytest_checks"}
            assert ours.isdisjoint(sys.modules)
            set_here = {name for name in os.environ if name.startswith("NPUSIM")}
            assert set_here <= {"NPUSIM_FAILED_FREE"}  # of all processes of these tests

        @pytest.mark.npusim(memory="1MiB")
        def test_marked():
            raise AssertionError("must not run")

        def test_fixture(npusim_device):
            raise AssertionError("must not run")

        def test_another_fixture(npusim_syncs):
            raise AssertionError("must not run")
    """
}


def test_without_the_option_nothing_is_imported_and_marked_tests_are_skipped(run_pytest):
    run = run_pytest(NOT_ASKED, "--strict-markers")
    assert run.passed() == {"test_nothing_is_imported"}, run.output
    assert run.output.count("needs pytest --npusim") == 3
    assert "npusim: " not in run.output


def test_the_plugin_can_be_turned_off(run_pytest):
    quiet = {"test_it.py": "def test_it(): pass\n"}
    assert run_pytest(quiet, "-p", "no:npusim").passed() == {"test_it"}
    run = run_pytest(quiet, "-p", "no:npusim", "--npusim")
    assert run.code == pytest.ExitCode.USAGE_ERROR
    assert "unrecognized arguments: --npusim" in run.output


def test_tests_that_never_import_torch_stay_without_it(run_pytest):
    files = {
        "test_it.py": """
            import sys

            def test_it():
                assert "torch" not in sys.modules
        """
    }
    run = run_pytest(files, *OPTIONS)
    assert run.passed() == {"test_it"}, run.output
    assert "no test ran with torch_npusim loaded" in run.section("npusim")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--npusim-devices=many", "--npusim-devices to be a number, got 'many'"),
        ("--npusim-memory=much", "a number of bytes such as 512MiB or 4096, got 'much'"),
        ("--npusim-sync=loud", "--npusim-sync to be count or warn or error or strict, got 'loud'"),
        ("--npusim-leaks=maybe", "--npusim-leaks to be error or warn or off, got 'maybe'"),
    ],
)
def test_a_wrong_value_is_named(run_pytest, option, message):
    run = run_pytest({"test_it.py": "def test_it(): pass\n"}, option)
    assert run.code == pytest.ExitCode.USAGE_ERROR
    assert message in run.output


def test_a_device_that_was_loaded_too_early_is_named(run_pytest):
    files = {"early.py": "import torch\n", "test_it.py": "def test_it(): pass\n"}
    run = run_pytest(files, "-p", "early", "--npusim-devices=5", environment={"PYTHONPATH": "."})
    assert run.code == pytest.ExitCode.USAGE_ERROR
    assert "torch_npusim was loaded before pytest read its options" in run.output
    run = run_pytest(
        files,
        *("-p", "early", "--npusim-devices=5"),
        environment={"PYTHONPATH": ".", "NPUSIM_DEVICE_COUNT": "5"},
    )
    assert run.passed() == {"test_it"}, run.output


CPU_KERNELS = {
    "pytest.ini": "[pytest]\nnpusim_cpu_kernels_allow =\n    mine::allowed\n    their*::*\n",
    "test_it.py": """
        import pytest
        import torch
        from torch_npusim.sim import rules

        def test_operators():
            assert rules.get_cpu_kernels()[-2:] == ("mine::allowed", "their*::*")
            library = torch.library.Library("mine", "DEF")
            for name in ("allowed", "refused"):
                library.define(name + "(Tensor x) -> Tensor")
                library.impl(name, lambda x: x * 2, "CPU")
            x = torch.ones(2, device="cuda")
            assert torch.ops.mine.allowed(x).eq(2).all()
            with pytest.raises(NotImplementedError, match="Could not run 'mine::refused'"):
                torch.ops.mine.refused(x)
    """,
}


def test_the_ini_file_names_operators_that_may_run_on_the_cpu(run_pytest):
    assert run_pytest(CPU_KERNELS, "--npusim-as-cuda").passed() == {"test_operators"}
