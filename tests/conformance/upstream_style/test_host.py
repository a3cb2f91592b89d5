# SPDX-License-Identifier: BSD-3-Clause
"""Plain classes, which name no device; run by test_upstream.py, not by pytest."""

import unittest
import warnings

import torch
from torch.testing._internal.common_utils import TestCase


class TestHost(TestCase):
    def test_right(self):
        self.assertEqual(torch.ones(2).sum(), torch.tensor(2.0))

    def test_warnings_are_seen(self):
        with warnings.catch_warnings(record=True) as seen:
            warnings.warn("one", stacklevel=1)
        self.assertEqual(len(seen), 1)

    def test_wrong_everywhere(self):
        self.assertEqual(torch.ones(1), torch.zeros(1))

    def test_minds_the_backend(self):
        self.assertFalse(torch.accelerator.is_available())

    def test_another_failure_hides_it(self):
        # Both fail, for different reasons: the CPU's failure excuses nothing.
        if torch.accelerator.is_available():
            raise KeyError("of the device")
        raise KeyError("of the CPU")

    def test_another_place(self):
        if torch.accelerator.is_available():
            raise KeyError("the same words")
        raise KeyError("the same words")

    @unittest.expectedFailure
    def test_expected_failure_passes_there(self):
        self.assertTrue(torch.accelerator.is_available())

    @unittest.expectedFailure
    def test_expected_failure_passes(self):
        self.assertTrue(True)
