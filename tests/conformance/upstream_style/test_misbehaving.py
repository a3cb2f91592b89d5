# SPDX-License-Identifier: BSD-3-Clause
"""Tests that end or stop their process; run by test_upstream.py, not by pytest."""

import os
import signal

from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_utils import TestCase


class TestMisbehaving(TestCase):
    def test_a_crash(self, device):
        os.kill(os.getpid(), signal.SIGSEGV)

    def test_b_hang(self, device):
        while True:
            pass

    def test_c_fine(self, device):
        self.assertTrue(device)

    def test_d_twin_crashes(self, device):
        if device == "cpu":
            os.kill(os.getpid(), signal.SIGSEGV)
        self.fail("the device's")

    def test_e_wrong_everywhere(self, device):
        self.fail("everybody's")


instantiate_device_type_tests(TestMisbehaving, globals())
