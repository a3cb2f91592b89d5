# SPDX-License-Identifier: BSD-3-Clause
"""A part of the battery in every run of the tests; all of it: python tests/compile/battery.py."""

import pytest
from compile import battery

SAMPLE = (
    "pointwise",
    "layer_norm_and_product",
    "reductions",
    "positions",
    "quotients",
    "indexing",
    "scatter",
    "views",
    "in_place",
    "convolution",
    "dynamic",
    "random_as_eager",
)


@pytest.mark.parametrize("name", SAMPLE)
def test_compiled_is_eager(name):
    battery.check(*battery.CASES[name]())


def test_a_wrong_result_is_found():
    """The battery's comparison can fail."""
    import torch

    x = torch.ones(3)
    for wrong in (x + 1, x.double(), torch.ones(3, 1)):
        with pytest.raises(AssertionError):
            battery.compare([wrong], [x], None)
