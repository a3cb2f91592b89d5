# SPDX-License-Identifier: BSD-3-Clause
"""Leaving the process in order: no abort, no noise, whatever is still alive.

The races that such scripts lose are invisible on several cores: each run is pinned to one, and as
many run at a time as there are cores.
"""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

RUNS = 10

ENDS_IN_BACKWARD = """
    import torch, torch_npusim
    x = torch.randn(64, 64, device="npusim", requires_grad=True)
    (x @ x).relu().sum().backward()
"""

ENDS_WITH_EVERYTHING_ALIVE = """
    import torch, torch_npusim
    side = torch.npusim.Stream()
    event = torch.npusim.Event(enable_timing=True)
    layer = torch.nn.Linear(8, 8).to("npusim")
    pinned = torch.ones(1000).pin_memory()
    side.wait_stream(torch.npusim.current_stream())
    with torch.npusim.stream(side):
        moved = pinned.to("npusim", non_blocking=True)
        other = moved.to("npusim:1")
        loss = layer(moved[:8]).sum()
        loss.backward()
        with torch.no_grad():
            layer.weight.sub_(layer.weight.grad)
        event.record(side)
    torch.npusim.current_stream().wait_stream(side)
    moved.record_stream(torch.npusim.default_stream())
    graph = loss * 2
    cycle = [layer, graph]
    cycle.append(cycle)
"""

FREES_DURING_SHUTDOWN = """
    import atexit, sys
    import torch, torch_npusim

    class Late:
        def __init__(self):
            self.tensor = torch.ones(10, device="npusim")
            self.pinned = torch.ones(10).pin_memory()
            self.stream = torch.npusim.Stream()

        def __del__(self):
            del self.tensor, self.pinned, self.stream

    in_a_global = Late()
    in_a_module = sys.modules["late"] = Late()
    torch.late = Late()
    in_a_cycle = Late()
    in_a_cycle.myself = in_a_cycle
    atexit.register(lambda late=Late(): late.tensor.add_(1))
    torch.ones(3, device="npusim", requires_grad=True).sum().backward()
"""


def outcomes(run_script, script, runs):
    """The set of (status, stderr) of `runs` runs, each pinned to one core."""
    cores = sorted(os.sched_getaffinity(0))

    def run(number):
        done = run_script(script, core=cores[number % len(cores)])
        return done.returncode, done.stderr

    with ThreadPoolExecutor(len(cores)) as pool:
        return set(pool.map(run, range(runs)))


@pytest.mark.parametrize(
    ("script", "runs"),
    [
        (ENDS_IN_BACKWARD, RUNS),
        (ENDS_WITH_EVERYTHING_ALIVE, RUNS),
        (FREES_DURING_SHUTDOWN, 5),
    ],
    ids=["backward", "alive", "shutdown"],
)
def test_the_process_ends_well(run_script, script, runs):
    """Rule P4; a sample, pinned to one core."""
    assert outcomes(run_script, script, runs) == {(0, "")}


def test_sys_exit_and_exceptions_keep_their_status(run_script):
    left = ENDS_IN_BACKWARD + "    raise SystemExit(7)\n"
    assert outcomes(run_script, left, 1) == {(7, "")}
    raised = run_script(ENDS_IN_BACKWARD + "    raise ValueError('mine')\n")
    assert raised.returncode == 1
    assert raised.stderr.rstrip().endswith("ValueError: mine")


def test_an_armed_fault_does_not_disturb_the_end(run_script):
    script = """
        import torch, torch_npusim
        from torch_npusim.sim import faults
        faults.arm("device", nth=1)
        x = torch.ones(3, device="npusim") + 1
    """
    assert outcomes(run_script, script, 1) == {(0, "")}
