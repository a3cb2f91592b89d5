# SPDX-License-Identifier: BSD-3-Clause
"""A network trains on mychip, and the CPU computes nothing of it."""

import runpy
from pathlib import Path

TRAIN = Path(__file__).parents[1] / "examples" / "train.py"


def test_a_network_trains_without_the_cpu():
    accuracy, on_cpu = runpy.run_path(str(TRAIN))["train"]()
    assert accuracy > 0.95
    assert on_cpu == []
