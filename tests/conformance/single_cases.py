# SPDX-License-Identifier: BSD-3-Clause
"""Executes single cases of the kit in this process, on a device with defects planted in it.

A defect stands in for an operator of the database, and misbehaves where its tensors lie on the
device under test; the CPU's results stay right.
"""

import warnings

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor

from npusim_conformance.backend.expectations import Expectations
from npusim_conformance.inputs import torch_testing
from npusim_conformance.inputs.transfer import tensors_of
from npusim_conformance.run.worker import Worker, WorkerConfig
from npusim_conformance.verdict import Status

PASS, FAIL, NA = Status.PASS, Status.FAIL, Status.NA


class Bench:
    """Executes cases by name; `samples_max` and `expectations` hold for the cases after."""

    def __init__(self, monkeypatch):
        self.samples_max = 4
        self.expectations = Expectations()
        self._monkeypatch = monkeypatch

    def outcome(self, case, device="npusim"):
        threads = torch.get_num_threads()
        module = "torch_npusim" if device == "npusim" else ""
        config = WorkerConfig(device, module, self.expectations, samples_max=self.samples_max)
        try:
            with warnings.catch_warnings():
                return Worker(config).execute(case)
        finally:
            torch.set_num_threads(threads)

    def status(self, case, device="npusim"):
        return self.outcome(case, device).status

    def plant(self, operator, defect):
        """defect(right, *args, **kwargs) stands in for `operator` on the device."""
        self._plant(operator, defect, lambda tensor: True)

    def plant_results(self, operator, defect):
        """plant(), but torch's predictions by fake tensors stay right."""
        self._plant(operator, defect, lambda tensor: not isinstance(tensor, FakeTensor))

    def _plant(self, operator, defect, concerns):
        info = torch_testing.operators()[operator]
        right = info.op

        def stand_in(*args, **kwargs):
            tensors = tensors_of((args, kwargs))
            if any(tensor.device.type == "npusim" and concerns(tensor) for tensor in tensors):
                return defect(right, *args, **kwargs)
            return right(*args, **kwargs)

        self._monkeypatch.setattr(info, "op", stand_in)


@pytest.fixture
def bench(monkeypatch):
    return Bench(monkeypatch)
