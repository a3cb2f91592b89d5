# SPDX-License-Identifier: BSD-3-Clause
"""One grammar for numbers of bytes: NPUSIM_DEVICE_MEMORY, the pytest plugin and the lab.

tests/native/backend_config_test.cpp has the same two tables.
"""

import argparse

import pytest

from npusim_lab.command import _bytes
from torch_npusim_common.pytest_settings import parse_bytes

ACCEPTED = {
    "4096": 4096,
    "4096B": 4096,
    "512MiB": 512 << 20,
    "512mib": 512 << 20,
    "1.5 GiB": 3 << 29,
    " 2KB ": 2000,
    "16gb": 16 * 10**9,
    "1TiB": 1 << 40,
    "3.MB": 3_000_000,
}
REFUSED = ["", "much", "-1", "1.5.5", ".", ".5GiB", "512M", "1 2", "4 kibi", "+3", "1e9", "0x10"]


@pytest.mark.parametrize("text", ACCEPTED)
def test_accepted(text):
    assert parse_bytes(text) == _bytes(text) == ACCEPTED[text]


@pytest.mark.parametrize("text", REFUSED)
def test_refused(text):
    with pytest.raises(pytest.UsageError, match="number of bytes"):
        parse_bytes(text)
    with pytest.raises(argparse.ArgumentTypeError, match="expected"):
        _bytes(text)
