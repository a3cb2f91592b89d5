# SPDX-License-Identifier: BSD-3-Clause
"""Frameworks that keep one device per process are made to choose anew for each test."""

import pytest


@pytest.fixture
def fresh_accelerate(monkeypatch):
    """Returns a function that makes accelerate forget what it chose; called around each test."""
    from accelerate.state import AcceleratorState, GradientState

    def forget():
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        # Set and removed, so that what the code under test sets goes with the test.
        for variable in ("ACCELERATE_TORCH_DEVICE", "ACCELERATE_MIXED_PRECISION"):
            monkeypatch.setenv(variable, "")
            monkeypatch.delenv(variable)

    forget()
    yield forget
    forget()
