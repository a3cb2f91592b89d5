# SPDX-License-Identifier: BSD-3-Clause
"""Classes for one device only, in each of the ways; run by test_upstream.py, not by pytest."""

import torch
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_utils import TestCase

DEVICE = torch._C._get_privateuse1_backend_name()


class TestOnlyThere(TestCase):
    def test_wrong_everywhere(self, device):
        self.assertEqual(torch.ones(1, device=device), torch.zeros(1, device=device))

    def test_wrong_there(self, device):
        self.assertEqual(torch.device(device).type, "cpu")


class TestOnlyElsewhere(TestCase):
    def test_one(self, device):
        self.fail("never run")

    def test_other(self, device):
        self.fail("never run")


class Template:
    def shape(self):
        self.assertEqual(torch.ones(1, device=self.device).shape, (2,))

    def kind(self):
        self.assertEqual(torch.ones(1, device=self.device).device.type, "cpu")


class CpuTests(TestCase):
    device = "cpu"
    test_shape_cpu = Template.shape
    test_kind_cpu = Template.kind


class GPUTests(TestCase):
    device = DEVICE


# As Inductor's tests are copied from a template.
setattr(GPUTests, f"test_shape_{DEVICE}", Template.shape)
setattr(GPUTests, f"test_kind_{DEVICE}", Template.kind)

instantiate_device_type_tests(TestOnlyThere, globals(), only_for=DEVICE)
instantiate_device_type_tests(TestOnlyElsewhere, globals(), only_for=("cuda", "xpu"))
