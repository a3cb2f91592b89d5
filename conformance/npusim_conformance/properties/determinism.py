# SPDX-License-Identifier: BSD-3-Clause
"""Equal inputs and equal seeds give equal bits."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from npusim_conformance.inputs.samples import Sample
from npusim_conformance.inputs.subjects import Subject
from npusim_conformance.judge.agreement import Agreement
from npusim_conformance.properties.base import (
    Dtypes,
    Run,
    SampleProperty,
    in_profiles,
    values_are_defined,
)
from npusim_conformance.verdict import NotApplicable

# Nondeterministic in the forward direction as torch.use_deterministic_algorithms() documents it,
# and what is composed of them.
NONDETERMINISTIC = frozenset(
    """bincount cumsum histc index_add index_copy index_put masked.cumsum masked.median median
    nanmedian put scatter scatter_add scatter_reduce.amax scatter_reduce.amin scatter_reduce.mean
    scatter_reduce.prod scatter_reduce.sum nn.functional.conv1d nn.functional.conv2d
    nn.functional.conv3d nn.functional.conv_transpose1d nn.functional.conv_transpose2d
    nn.functional.conv_transpose3d nn.functional.cross_entropy nn.functional.max_unpool1d
    nn.functional.max_unpool1d.grad nn.functional.max_unpool2d nn.functional.max_unpool2d.grad
    nn.functional.max_unpool3d nn.functional.max_unpool3d.grad nn.functional.nll_loss""".split()
)

# LAPACK's bits depend on where its operands lie in memory, on the CPU itself too.
MEMORY_DEPENDENT = frozenset({"linalg.lstsq", "linalg.lstsq.grad_oriented"})


class Determinism(SampleProperty):
    """The same call gives the same bits twice. Random operators: see the property `random`.

    Operators that torch documents as nondeterministic are asked under
    torch.use_deterministic_algorithms(True), where they may refuse.
    """

    name = "determinism"
    profiles = in_profiles(standard=Dtypes.DEFAULT, full=Dtypes.DEFAULT)

    def applies(self, subject: Subject, dtype: torch.dtype | None) -> str:
        """Not for results that are uninitialised memory."""
        if subject.name in MEMORY_DEPENDENT:
            return "the CPU's own bits depend on where the operands lie in memory"
        return "" if values_are_defined(subject.info) else "the result is uninitialised memory"

    def examine(self, run: Run, sample: Sample, device: torch.device) -> None:
        """The first result is kept alive, so that the second lies elsewhere."""
        if sample.is_random:
            raise NotApplicable("random: the property `random` asks for its seeds")
        with deterministic(sample.subject.name in NONDETERMINISTIC):
            results = [self._once(sample, device) for _ in range(2)]
        first, second = results
        exactly = Agreement(bitwise=True, where="the first time")
        exactly.check(first, second, device, "second result")

    @staticmethod
    def _once(sample: Sample, device: torch.device) -> Any:
        try:
            return sample.run(device)
        except RuntimeError as error:
            if "does not have a deterministic implementation" in str(error):
                raise NotApplicable(str(error).splitlines()[0]) from None
            raise


@contextmanager
def deterministic(demanded: bool) -> Iterator[None]:
    """Asks torch for deterministic algorithms, and no longer afterwards."""
    torch.use_deterministic_algorithms(demanded)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


PROPERTIES = [Determinism]
