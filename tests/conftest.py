# SPDX-License-Identifier: BSD-3-Clause
"""Fixtures of all tests: one seed, and scripts in processes of their own."""

import functools
import gc
import os
import textwrap

os.environ.setdefault("NPUSIM_FAILED_FREE", "abort")  # of this process and of those that it starts

import pytest
import torch
from processes import python, without_npusim

import torch_npusim  # noqa: F401  (for where autoload has stepped back)
from torch_npusim.sim import rules

pytest_plugins = ["alone", "parts", "seconds"]

# What needs more than `make test` installs, or takes longer: by the target that runs it.
OF_TARGETS = {
    "browser": "browser",
    "dask": "on_dask",
    "docs-test": "site",
    "hta": "hta",
    "new-backend": "new_backend",
    "parallel": "distributed/test_launched.py",
    "triton": "triton_kernels",
    "truth": "truth/test_whole.py",
}
collect_ignore = [
    path for target, path in OF_TARGETS.items() if os.environ.get("NPUSIM_TESTS") != target
]


# torch.testing wants packages of PyTorch's own CI where this is set.
os.environ.pop("CI", None)


def pytest_make_parametrize_id(val, argname):
    """Bytes are no names: those of a compressed file change from second to second."""
    return argname if isinstance(val, bytes) else None


@pytest.fixture(scope="session", autouse=True)
def _one_allocator():
    """Tests of the alias find that of npusim in use, whichever test of this process runs first."""
    torch.empty(1, device="npusim")


@pytest.fixture(scope="session", autouse=True)
def _replays_free_nothing():
    """A replay of a graph leaves the statistics of its device as they were."""
    replay = torch.npusim.NPUSIMGraph.replay

    @functools.wraps(replay)
    def checked(graph):
        before = torch.npusim.memory_allocated()
        replay(graph)
        after = torch.npusim.memory_allocated()
        assert after == before, f"a replay changed {before} allocated bytes to {after}"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.npusim.NPUSIMGraph, "replay", checked)
        yield


@pytest.fixture(autouse=True)
def _one_seed():
    """No test depends on which tests ran before it."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _no_garbage_of_others():
    """Cycles that earlier tests left go between tests, never while a test counts its bytes."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(autouse=True)
def _same_environment():
    """No test starts its processes in an environment that another test has changed."""
    before = dict(os.environ)
    yield
    for name in (before.keys() | os.environ.keys()) - {"PYTEST_CURRENT_TEST"}:
        if name not in before:
            del os.environ[name]
        elif os.environ.get(name) != before[name]:
            os.environ[name] = before[name]


@pytest.fixture(autouse=True)
def _same_threads():
    """Kernels choose their route by the number of threads: commands that run here set it."""
    before = torch.get_num_threads()
    yield
    if torch.get_num_threads() != before:
        torch.set_num_threads(before)


def _switches():
    """Switches of the whole process that kernels look at."""
    return {
        "threads": torch.get_num_threads(),
        "grad": torch.is_grad_enabled(),
        "default dtype": torch.get_default_dtype(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "mkldnn": torch.backends.mkldnn.enabled,
        "products": torch.get_float32_matmul_precision(),
        "device": torch.npusim.current_device(),
        "rules": rules._asked,
    }


_AT_FIRST = _switches()


@pytest.fixture(scope="module", autouse=True)
def _same_switches():
    """No file of tests, and none of its imports or fixtures, sets one for the files after it."""
    yield
    torch.set_num_threads(_AT_FIRST["threads"])  # commands of the kit that a fixture runs set it
    assert _switches() == _AT_FIRST, "this file has set this for those after it"


@pytest.fixture(autouse=True)
def _flags_can_be_set():
    """torch's own test utilities forbid that for the whole process that imports them."""
    with torch.backends.__allow_nonbracketed_mutation():
        yield


@pytest.fixture
def races_off():
    """No race is told, in `make races` either: another check is to find it, or nobody asks."""
    before = torch.npusim.get_race_detection()
    torch.npusim.set_race_detection("off")
    yield
    torch.npusim.set_race_detection(before)


@pytest.fixture
def run_script():
    """Runs a script in a new interpreter and returns the finished process, whatever it says.

    `core` pins the process to one core from its first instruction on; `limits` are pairs of a
    resource (resource.RLIMIT_*) and its limit. `cold` is that of processes.python().
    """

    def run(
        script, *, environment=None, arguments=(), core=None, limits=(), timeout=120, cold=False
    ):
        def prepare():
            import resource

            if core is not None:
                os.sched_setaffinity(0, {core})
            for what, limit in limits:
                resource.setrlimit(what, (limit, limit))

        races = os.environ.get("NPUSIM_RACES")  # of `make races`
        inherited = without_npusim(**{"NPUSIM_RACES": races} if races else {})
        return python(
            *arguments,
            "-c",
            textwrap.dedent(script),
            env=inherited,
            variables=environment,
            timeout=timeout,
            cold=cold,
            preexec_fn=prepare if core is not None or limits else None,
        )

    return run


@pytest.fixture
def run_python(run_script):
    """The same for a script that must succeed, unless `check` is False: returns its stdout."""

    def run(script, *, check=True, **options):
        done = run_script(script, **options)
        if not check:
            return done
        assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run
