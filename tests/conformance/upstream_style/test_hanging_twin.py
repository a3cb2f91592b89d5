# SPDX-License-Identifier: BSD-3-Clause
"""Tests that hang for the CPU only; run by test_upstream.py, not by pytest."""

from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_utils import TestCase


class TestHangingTwin(TestCase):
    def test_fine(self, device):
        self.assertTrue(device)

    def test_hang(self, device):
        while device == "cpu":
            pass


instantiate_device_type_tests(TestHangingTwin, globals())
