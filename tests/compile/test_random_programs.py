# SPDX-License-Identifier: BSD-3-Clause
"""A sample of the random programs; all one wants: python tests/compile/random_programs.py."""

import pytest
from compile import random_programs


@pytest.mark.parametrize("seed", [3, 8, 21])
def test_compiled_is_eager(seed):
    assert random_programs.check(seed) == "pass"


def test_a_difference_is_found():
    source, made = random_programs.program(0)
    lies = "(1 + 1e-3 * torch.compiler.is_compiling())"
    source = source.replace("a = x0 * 1", f"a = x0 * {lies}")
    assert "not close" in random_programs.difference(source, made, 0, "npusim")
