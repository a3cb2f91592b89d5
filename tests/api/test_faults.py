# SPDX-License-Identifier: BSD-3-Clause
"""torch_npusim.sim.faults: injected failures surface where the host waits, and can be cleared."""

import pytest
import torch

from torch_npusim.sim import faults

DEVICE_ERRORS = (torch.AcceleratorError, RuntimeError)


def test_a_failed_launch_surfaces_when_the_host_waits():
    x = torch.ones(3, device="npusim")
    with faults.inject("launch", nth=1):
        x + 1
        with pytest.raises(DEVICE_ERRORS, match="launch"):
            torch.npusim.synchronize()
        assert faults.counts()["launch"] == 1
        assert faults.counts()["reported"] == 1
        assert (x + 1).tolist() == [2, 2, 2]


def test_nothing_is_left_after_the_block():
    with faults.inject("launch", nth=1000):
        pass
    assert set(faults.counts().values()) == {0}


def test_a_copy_that_converts_has_the_name_of_copies():
    x = torch.ones(3, device="npusim")
    y = torch.ones(3, dtype=torch.float64, device="npusim")
    torch.npusim.synchronize()
    with faults.inject("launch", nth=1, name="aten::copy_"):
        x.copy_(y)
        with pytest.raises(DEVICE_ERRORS, match="launch"):
            torch.npusim.synchronize()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"kind": "fire", "nth": 1}, "'fire', expected one of oom, launch, hang, device"),
        ({"kind": "oom"}, "exactly one"),
        ({"kind": "oom", "nth": 1, "probability": 0.5}, "exactly one"),
        ({"kind": "oom", "nth": 0}, "counts calls from 1, got 0"),
        ({"kind": "oom", "probability": 1.5}, "got 1.5"),
    ],
)
def test_rules_are_validated(arguments, text):
    with pytest.raises(ValueError, match=text):
        faults.arm(**arguments)


def test_faults_from_the_environment(run_python):
    text = run_python(
        """
        import torch, torch_npusim
        torch.zeros(3, device="npusim")
        try:
            torch.npusim.synchronize()
        except RuntimeError:
            print("reported")
        """,
        environment={"NPUSIM_FAULT": "launch@1"},
    )
    assert text == "reported\n"


def test_blocking_launches_report_at_the_call(run_python):
    text = run_python(
        """
        import torch, torch_npusim
        from torch_npusim.sim import faults
        x = torch.zeros(3, device="npusim")
        faults.arm("launch", nth=1)
        try:
            x + 1
        except RuntimeError:
            print("at the call")
        """,
        environment={"NPUSIM_LAUNCH_BLOCKING": "1"},
    )
    assert text == "at the call\n"


@pytest.mark.parametrize("fast", ["1", "0"])
def test_commands_have_the_names_of_schemas(run_python, fast):
    """The name that a fault tells is the operator's, with its overload, on every route."""
    script = """
        import torch
        from torch_npusim.sim import faults
        x = torch.ones(4, 4, device="npusim")
        calls = {
            "aten::add.Tensor": lambda: x + x,
            "aten::mul_.Tensor": lambda: x.mul_(2.0),
            "aten::sum.dim_IntList": lambda: x.sum(0),
            "aten::_softmax": lambda: x.softmax(1),
            "aten::mm": lambda: x @ x,
            "aten::eq.Scalar": lambda: x == 1,
            "aten::fill_.Scalar": lambda: x.fill_(2),
        }
        for name, call in calls.items():
            torch.npusim.synchronize()
            base = name.split(".")[0]
            with faults.inject("launch", nth=1, name=base):
                call()
                try:
                    torch.npusim.synchronize()
                except RuntimeError as error:
                    assert f"`{name}`" in str(error), (name, str(error))
                else:
                    raise AssertionError(name)
        print("all")
    """
    assert run_python(script, environment={"NPUSIM_FASTPATH": fast}) == "all\n"
