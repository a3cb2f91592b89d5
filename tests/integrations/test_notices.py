# SPDX-License-Identifier: BSD-3-Clause
"""A framework that would train on the CPU without a word: one line says what to write."""

import pytest
from processes import python

CASES = {
    "accelerate": ("import accelerate", "ACCELERATE_TORCH_DEVICE=npusim"),
    "lightning": ("import lightning.pytorch", "accelerator='npusim', strategy='single_npusim'"),
}


def errors_of(program, monkeypatch, **variables):
    for name in ("NPUSIM_AS_CUDA", "ACCELERATE_TORCH_DEVICE", "ACCELERATE_USE_CPU"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    command = ["-c", f"import torch\n{program}"]
    done = python(*command)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize("name", CASES)
def test_the_line_says_what_to_write(name, monkeypatch):
    program, says = CASES[name]
    errors = errors_of(program, monkeypatch)
    assert errors.count("although npusim is there") == 1
    assert says in errors


@pytest.mark.parametrize(
    ("program", "variables"),
    [
        ("import accelerate", {"NPUSIM_AS_CUDA": "1"}),
        ("import accelerate", {"ACCELERATE_TORCH_DEVICE": "npusim"}),
        ("import accelerate", {"ACCELERATE_USE_CPU": "1"}),
        ("import torch_npusim.integrations.accelerate, accelerate", {}),
    ],
)
def test_it_is_not_said_to_those_who_wrote_it(program, variables, monkeypatch):
    assert "although npusim is there" not in errors_of(program, monkeypatch, **variables)
