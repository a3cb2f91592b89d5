# SPDX-License-Identifier: BSD-3-Clause
"""Fixtures of all tests: one seed, and scripts in processes of their own."""

import gc
import os
import subprocess
import sys
import textwrap

import pytest
import torch
from repo.sources import ROOT

import torch_npusim  # noqa: F401  (for where autoload has stepped back)

# What needs more than `make test` installs, or takes longer: by the target that runs it.
OF_TARGETS = {
    "browser": "browser",
    "hta": "hta",
    "new-backend": "new_backend",
    "parallel": "distributed/test_launched.py",
    "triton": "triton_kernels",
}
collect_ignore = [
    path for target, path in OF_TARGETS.items() if os.environ.get("NPUSIM_TESTS") != target
]


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


@pytest.fixture(autouse=True)
def _flags_can_be_set():
    """torch's own test utilities forbid that for the whole process that imports them."""
    with torch.backends.__allow_nonbracketed_mutation():
        yield


@pytest.fixture
def run_script():
    """Runs a script in a new interpreter and returns the finished process, whatever it says.

    `core` pins the process to one core from its first instruction on; `limits` are pairs of a
    resource (resource.RLIMIT_*) and its limit.
    """

    def run(script, *, environment=None, core=None, limits=(), timeout=120):
        def prepare():
            import resource

            if core is not None:
                os.sched_setaffinity(0, {core})
            for what, limit in limits:
                resource.setrlimit(what, (limit, limit))

        variables = {
            name: text
            for name, text in os.environ.items()
            if "NPUSIM" not in name or name == "NPUSIM_RACES"  # of `make races`
        }
        variables |= {"PYTHONPATH": str(ROOT), **(environment or {})}
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)],
            env=variables,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            preexec_fn=prepare if core is not None or limits else None,
        )

    return run
