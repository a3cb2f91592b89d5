# SPDX-License-Identifier: BSD-3-Clause
"""Names of PyTorch's tests without the device that they were instantiated for."""

import pytest

from npusim_conformance.upstream.collection import _without_device


@pytest.mark.parametrize(
    ("method", "generic"),
    [
        ("test_add_meta", "test_add_device"),
        ("test_add_meta_float32", "test_add_device_float32"),
        ("test_add_privateuse1_int64", "test_add_device_int64"),
        ("test_metal_meta", "test_metal_device"),
        ("test_add_metadata", "test_add_metadata"),
        ("test_add", "test_add"),
    ],
)
def test_the_device_behind_a_name_becomes_a_word(method, generic):
    assert _without_device(method, "meta") == generic
