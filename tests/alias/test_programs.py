# SPDX-License-Identifier: BSD-3-Clause
"""Programs written for CUDA, unmodified: they say "cuda" and know nothing of npusim."""

import os
from pathlib import Path

import pytest
import torch
from processes import python
from repo.sources import ROOT

PROGRAMS = Path(__file__).with_name("programs")

SAYS = {
    "mixed_precision": ["resumed True", "learned True", "skipped True 0.5"],
    "prefetcher": ["batches 3 sum 4560 timed True", "on 1 current 0 True True"],
    "memory": [
        "allocated 4194304",
        "freed 0 4194304",
        "reserved 0",
        "total True True",
        "batch 256 refused 4",
        "history True True",
        "stats True",
        "summary True",
    ],
    "older_style": [
        "finite True True",
        "device 0 0 0 True",
        "device 1 1 1 True",
        "moved 0 1 4.0",
        "parallel (6, 16)",
        "rnn True",
    ],
    "recompute": ["checkpoint True", "reentrant True", "sequential True"],
    "traced": [
        "before: 0",
        "streams: True True",
        "another stream: 0",
        "memory: True",
        "unrecorded: 0 None []",
        "handles: True True True",
        "event: True",
        "waits: True",
        "wait_stream: event_creation event_record event_wait event_deletion",
        "out of memory: 0 5368709120 True True",
        "of a fraction: (734003200, 536870912)",
    ],
    "workers": ["[5.0, 50.0]", "[5.0, 50.0]", "spawned 14", "exit 0"],
}


def run(program, *arguments, **variables):
    """Runs a program with the alias in its environment and returns what it prints."""
    environment = {
        "PATH": os.environ["PATH"],  # recorded C++ stacks are read with addr2line
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "NPUSIM_AS_CUDA": "1",
        "NPUSIM_AUTOLOAD": "1",
        "NPUSIM_DEVICE_MEMORY": "1GiB",
        **variables,
    }
    finished = python("-W", "ignore", PROGRAMS / f"{program}.py", *arguments, env=environment)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.splitlines()


@pytest.mark.parametrize("program", SAYS)
def test_it_runs_and_says_what_it_says_on_cuda(program):
    assert run(program) == SAYS[program]


def test_digits_are_learned_as_on_cpu(tmp_path):
    pytest.importorskip("sklearn", reason="the images are those of scikit-learn")
    on_device = run("digits", "--save", str(tmp_path / "digits.pt"))
    assert on_device == run("digits", "--no-cuda")
    assert int(on_device[-1].split()[-1]) > 128  # of 256
    assert torch.load(tmp_path / "digits.pt")["fc2.bias"].is_cuda


def test_races_are_reported_in_the_words_of_the_program():
    assert run("overlap", NPUSIM_RACES="error") == [
        "overlapped 768.0 256.0",
        "npusim: data race (wait_stream is missing) True False True",
        "npusim: data race (record_stream is missing) True False True",
        "npusim: data race (synchronize is missing) True False True",
    ]


def test_each_program_is_run():
    assert {path.stem for path in PROGRAMS.glob("*.py")} == {*SAYS, "digits", "overlap"}


def test_no_program_knows_npusim():
    assert not [path for path in PROGRAMS.glob("*.py") if "npusim." in path.read_text().lower()]
