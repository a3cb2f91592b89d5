# SPDX-License-Identifier: BSD-3-Clause
"""In the manner of PyTorch's device-generic test files; run by test_upstream.py, not by pytest."""

import unittest

import torch
from torch.testing._internal.common_device_type import (
    dtypes,
    instantiate_device_type_tests,
    onlyCUDA,
    ops,
)
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import TestCase, run_tests


class TestArithmetic(TestCase):
    @dtypes(torch.float32, torch.int64)
    def test_add(self, device, dtype):
        one = torch.ones(3, device=device, dtype=dtype)
        self.assertEqual(one + one, torch.full((3,), 2, device=device, dtype=dtype))

    def test_wrong_everywhere(self, device):
        self.assertEqual(torch.ones(1, device=device), torch.zeros(1, device=device))

    def test_wrong_on_the_device(self, device):
        self.assertEqual(device.partition(":")[0], "cpu")

    def test_another_failure_hides_it(self, device):
        # Both fail, for different reasons: the CPU's failure excuses nothing.
        if device == "cpu":
            raise RuntimeError("of the CPU")
        raise ValueError("of the device")

    def test_other_samples_hide_it(self, device):
        index = 2 if device == "cpu" else 1
        raise RuntimeError(f"wrong\n\nCaused by sample input at index {index}: SampleInput(...)")

    @onlyCUDA
    def test_for_another_device(self, device):
        self.fail("never run")

    @unittest.expectedFailure
    def test_known_failure(self, device):
        self.assertEqual(device, "nowhere")

    @ops([op for op in op_db if op.name == "neg"], allowed_dtypes=(torch.float32,))
    def test_described_operator(self, device, dtype, op):
        for sample in op.sample_inputs(device, dtype):
            self.assertEqual(op(sample.input), sample.input * -1)


class TestSecondClass(TestCase):
    def test_zeros(self, device):
        self.assertEqual(torch.zeros(2, device=device).sum().item(), 0)


instantiate_device_type_tests(TestArithmetic, globals())
instantiate_device_type_tests(TestSecondClass, globals())

if __name__ == "__main__":
    run_tests()
