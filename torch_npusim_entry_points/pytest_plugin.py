# SPDX-License-Identifier: BSD-3-Clause
"""pytest --npusim: runs tests with simulated devices, and checks what hardware would show.

pytest imports this module in every run of an environment that has torch-npusim, so it imports
nothing but the standard library and pytest; the checks (pytest_checks) are imported on request.
docs/use/ci.md describes the options. Needs pytest 8.

PYTEST_DONT_REWRITE
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import torch

    from torch_npusim.sim.synchronisation import Recording

_MARKER = (
    "npusim(memory=None, devices=None, sync=None, allow=None, peak=None, max_launches=None, "
    "leaks=None, seed=None): the test needs --npusim, and what it needs of it: a limit of each "
    "device's memory, a number of devices, what a host synchronisation does and which are allowed, "
    "limits of the peak and of launches, whether leaks are an error, a seed."
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options, each of which an ini option of the same name also sets."""
    group = parser.getgroup("npusim", "simulated accelerators (torch-npusim)")

    def add(name: str, help: str, **option: Any) -> None:
        ini = name.replace("-", "_")
        group.addoption(f"--{name}", dest=ini, help=help, default=None, **option)
        if option.get("action") == "store_true":
            parser.addini(ini, help, type="bool", default=False)
        else:
            parser.addini(ini, help, type="string", default="")

    add("npusim", "load npusim, and check after each test what it left", action="store_true")
    add("npusim-devices", "number of devices", metavar="N")
    add("npusim-memory", "capacity of each device, such as 512MiB", metavar="BYTES")
    add("npusim-as-cuda", 'code that says "cuda" runs on npusim', action="store_true")
    add(
        "npusim-dry",
        "run dry: memory and commands of the devices without their numbers; assertions on values "
        "are told apart",
        action="store_true",
    )
    add(
        "npusim-cuda-capability",
        "compute capability that a run with --npusim-as-cuda is judged as, such as 9.0",
        metavar="X.Y",
    )
    add(
        "npusim-sync",
        "what a host synchronisation outside of the test's own file does: count (and show a "
        "table), warn, error; strict: error, also where the program asked to wait",
        metavar="MODE",
    )
    add(
        "npusim-require-device",
        "fail if fewer than N tests (default 1) used a device",
        metavar="N",
        nargs="?",
        const="1",
    )
    add(
        "npusim-strict-align",
        "refuse operands that do not start on a 32-byte boundary",
        action="store_true",
    )
    add(
        "npusim-races",
        "what a race between streams, or with the host, is: error, report (a warning)",
        metavar="MODE",
    )
    add("npusim-seed", "seed of torch before each test", metavar="N")
    add(
        "npusim-max-graph-breaks",
        "most places at which torch.compile may end a graph within a test",
        metavar="N",
    )
    add("npusim-max-launches", "most commands that a test may launch", metavar="N")
    add("npusim-peak", "most bytes that a test may add to a device", metavar="BYTES")
    add(
        "npusim-leaks",
        "what device memory left by a test is: error (default), warn, off",
        metavar="MODE",
    )
    add(
        "npusim-baseline",
        "file of failures that are known today; a run without the file writes it",
        metavar="FILE",
    )
    parser.addini(
        "npusim_sync_allow",
        "modules (mylib.sums), files (with a slash) or operations (aten::*) that may synchronise",
        type="linelist",
    )
    parser.addini(
        "npusim_leaks_allow", "patterns of lines of a report that is no leak", type="linelist"
    )
    parser.addini(
        "npusim_cpu_kernels_allow",
        "operators (mylib::nms, mylib::*) whose kernels for the CPU may run under the alias",
        type="linelist",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Puts what was asked for into the environment before a conftest.py imports torch."""
    if not _anything_asked(early_config):
        return
    from torch_npusim_common.pytest_settings import Settings
    from torch_npusim_entry_points import pytest_checks

    settings = Settings.of(early_config)
    pytest_checks.set_environment(settings, early_config.add_cleanup)
    early_config.pluginmanager.register(pytest_checks.Checks(settings), "npusim_checks")
    if settings.baseline is not None:
        from torch_npusim_entry_points.pytest_baseline import Baseline

        baseline = Baseline(early_config.rootpath / settings.baseline)
        early_config.pluginmanager.register(baseline, "npusim_baseline")


def pytest_configure(config: pytest.Config) -> None:
    """Makes the marker known."""
    config.addinivalue_line("markers", _MARKER)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a test that needs npusim in a run without it."""
    if item.get_closest_marker("npusim") is not None:
        _need_npusim(item.config)


def _anything_asked(config: pytest.Config) -> bool:
    given = vars(config.known_args_namespace)
    return any(value for name, value in given.items() if name.startswith("npusim")) or any(
        config.getini(name) for name in given if name.startswith("npusim")
    )


def _need_npusim(config: pytest.Config) -> None:
    if not config.pluginmanager.has_plugin("npusim_checks"):
        raise pytest.skip.Exception("needs pytest --npusim", _use_item_location=True)


@pytest.fixture
def npusim_device(pytestconfig: pytest.Config) -> "torch.device":
    """The first npusim device."""
    _need_npusim(pytestconfig)
    import torch

    return torch.device("npusim", 0)


@pytest.fixture
def npusim_devices(pytestconfig: pytest.Config) -> "list[torch.device]":
    """All npusim devices, in the order of their index."""
    _need_npusim(pytestconfig)
    import torch

    count = torch.accelerator.device_count()
    return [torch.device("npusim", index) for index in range(count)]


@pytest.fixture
def npusim_ranks(pytestconfig: pytest.Config) -> "Callable[..., list[Any]]":
    """`npusim_ranks(function, 4)` runs it as four ranks and returns what each returned.

    Calls torch_npusim.testing.run_ranks(); --npusim-devices says how many ranks there can be.
    """
    _need_npusim(pytestconfig)
    from torch_npusim.testing import run_ranks

    return run_ranks


@pytest.fixture
def npusim_syncs(pytestconfig: pytest.Config) -> "Iterator[Recording]":
    """The host synchronisations of the test from here on, in the test's own file too."""
    _need_npusim(pytestconfig)
    from torch_npusim.sim.synchronisation import record

    with record() as recording:
        yield recording
