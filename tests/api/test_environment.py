# SPDX-License-Identifier: BSD-3-Clause
"""Variables that look like ours and are none are named, with the nearest that is."""

import pytest
from processes import python

from torch_npusim import _environment
from torch_npusim.cli import doctor


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("NPUSIM_DEVCE_COUNT", "NPUSIM_DEVICE_COUNT"),
        ("NPUSIM_RULE", "NPUSIM_RULES"),
        ("NPUSIM_MEMORY", "NPUSIM_DEVICE_MEMORY"),
    ],
)
def test_an_unknown_variable_warns_with_the_nearest_name(name, nearest, monkeypatch):
    monkeypatch.setenv(name, "4")
    with pytest.warns(
        RuntimeWarning, match=f"{name} is set.*no effect. The nearest name is {nearest}"
    ):
        _environment.warn_of_unknown_variables()
    [finding] = [it for it in doctor.examine() if it.check == "environment"]
    assert finding.status == "warning"
    assert f"{name}: did you mean {nearest}?" in finding.remedy


@pytest.mark.parametrize("strictness", [[], ["-W", "error::RuntimeWarning"]], ids=["", "error"])
def test_loading_warns_and_goes_on(strictness, monkeypatch):
    monkeypatch.setenv("NPUSIM_DEVCE_COUNT", "4")
    done = python(*strictness, "-c", "import torch; torch.npusim.synchronize()")
    assert done.returncode == 0, done.stderr
    assert "NPUSIM_DEVCE_COUNT is set" in done.stderr


def test_known_variables_are_fine(monkeypatch):
    monkeypatch.setenv("NPUSIM_DEVICE_COUNT", "2")
    monkeypatch.setenv("NPUSIM_STRESS_SECONDS", "2")
    assert _environment.unknown_variables() == {}
    [finding] = [it for it in doctor.examine() if it.check == "environment"]
    assert finding.status == "ok"
