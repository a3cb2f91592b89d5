# SPDX-License-Identifier: BSD-3-Clause
"""Memory that operators took is given back."""

import gc

import torch

from npusim_conformance.inputs.samples import Sample
from npusim_conformance.properties.base import Dtypes, Run, SampleProperty, in_profiles
from npusim_conformance.verdict import Mismatch, NotApplicable


class Memory(SampleProperty):
    """Allocated bytes are what they were before once an operator's results are dropped.

    The first call may leave something for good (a workspace, a table); the calls after may not.
    """

    name = "memory"
    profiles = in_profiles(standard=Dtypes.DEFAULT, full=Dtypes.DEFAULT)
    few = 10

    def examine(self, run: Run, sample: Sample, device: torch.device) -> None:
        """Counts after one call and after one more."""
        if device != run.device or run.under_test.allocated_bytes() is None:
            sample.run(device)
            raise NotApplicable("the backend does not say how many bytes are allocated")
        before = self._bytes_after_call(run, sample)
        after = self._bytes_after_call(run, sample)
        if after != before:
            gc.collect()  # cycles of Python objects are no leak of the device
            after = self._settled_bytes(run)
        if after > before:
            raise Mismatch(f"{after - before} bytes stay allocated after each call")

    def _bytes_after_call(self, run: Run, sample: Sample) -> int:
        sample.run(run.device)
        return self._settled_bytes(run)

    @staticmethod
    def _settled_bytes(run: Run) -> int:
        run.under_test.synchronize()
        count = run.under_test.allocated_bytes()
        assert count is not None
        return count


PROPERTIES = [Memory]
