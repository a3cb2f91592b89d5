# SPDX-License-Identifier: BSD-3-Clause
"""torch's predictions of results that are not computed: the meta device and fake tensors.

Compilers lay out memory by these predictions, so a device whose results have other strides than
predicted is wrong, however right their values. Only strides that matter are compared: those of
dimensions longer than one, in tensors that hold something. Where the CPU's own results differ from
the prediction (https://github.com/pytorch/pytorch/issues/77553) the case counts as upstream.
"""

from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.utils import _pytree as pytree

from npusim_conformance.backend.device import CPU
from npusim_conformance.inputs.samples import Call, Sample
from npusim_conformance.inputs.subjects import Subject
from npusim_conformance.inputs.transfer import tensors_of
from npusim_conformance.properties.base import (
    FAILURES_MAX,
    Dtypes,
    Run,
    SampleProperty,
    in_profiles,
)
from npusim_conformance.properties.calls import are_plain, strides_that_matter
from npusim_conformance.properties.gradients import gradients
from npusim_conformance.properties.layouts import reversed_in_memory
from npusim_conformance.verdict import Mismatch, NotApplicable

META = torch.device("meta")
# Of these torch predicts only the first result for every device; for the others it predicts what
# CUDA returns (native_batch_norm_helper in torch/_decomp), which is not what the CPU returns.
ONE_PREDICTED = frozenset({"native_batch_norm", "_native_batch_norm_legit"})
UNPREDICTABLE = (DataDependentOutputException, DynamicOutputShapeException)


class BothWays(SampleProperty):
    """Looks at each sample as it is, then with its inputs' dimensions the other way round."""

    few = 20

    def check(self, run: Run) -> None:
        """Of results, strides are wrong more often for inputs whose memory is not in rows."""
        for sample in run.few(self.few, self.requires_grad):
            run.attempt(sample.index, partial(self.examine, run, sample))
            if any(leaf.dim() > 1 for leaf in tensors_of(sample.copy(CPU))):
                run.attempt(sample.index, partial(self.examine, run, _reversed(sample)))
            if len(run.failures) >= FAILURES_MAX:
                return


class Meta(BothWays):
    """Results have the shapes, strides and dtypes that the meta device predicts."""

    name = "meta"
    profiles = in_profiles(standard=Dtypes.DEFAULT, full=Dtypes.DEFAULT)

    def examine(self, run: Run, sample: Sample, device: torch.device) -> None:
        """Runs the operator on the device and on the meta device."""
        try:
            predicted = sample.run(META)
        except Exception as error:  # no meta kernel, or a result that depends on the data
            raise NotApplicable(f"the meta device: {_first_line(error)}") from None
        check_prediction(predicted, sample.run(device), "the meta device")


def _reversed(sample: Sample) -> Sample:
    leaves, structure = pytree.tree_flatten(sample.copy(CPU))
    if not are_plain(leaves):
        return sample
    laid = [reversed_in_memory(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    return sample.with_call(pytree.tree_unflatten(laid, structure))


class Fake(SampleProperty):
    """Fake tensors of the device predict shapes, strides, dtypes and device of its results."""

    name = "fake"
    profiles = in_profiles(standard=Dtypes.DEFAULT, full=Dtypes.DEFAULT)
    few = 12

    def compute(self, run: Run, sample: Sample, call: Call) -> Any:
        """The prediction, from real or fake tensors."""
        given, args, kwargs = call
        results = sample.operator(given, *args, **kwargs)
        return results[0] if sample.subject.name in ONE_PREDICTED else results

    def examine(self, run: Run, sample: Sample, device: torch.device) -> None:
        """Not to predict what depends on the data is right where the CPU's do not either."""
        try:
            predicted = self._predicted(run, sample, device)
        except UNPREDICTABLE as error:
            if device != CPU:
                self._expect_unpredictable(run, sample, error)
            return
        except (UnsupportedFakeTensorException, UnsupportedOperatorException) as error:
            raise NotApplicable(f"fake tensors: {_first_line(error)}") from None
        got = self.compute(run, sample, sample.copy(device))
        check_prediction(predicted, got, "fake tensors")
        leaves = zip(pytree.tree_leaves(predicted), pytree.tree_leaves(got), strict=True)
        for number, (one, other) in enumerate(leaves):
            if isinstance(other, torch.Tensor) and one.device != other.device:
                raise Mismatch(
                    f"result {number}: on {other.device}; predicted by fake tensors: {one.device}"
                )

    def _predicted(self, run: Run, sample: Sample, device: torch.device) -> Any:
        """The results for fake tensors that stand for `device`; nothing is computed there."""
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        call = pytree.tree_map(
            lambda leaf: mode.from_tensor(leaf) if isinstance(leaf, torch.Tensor) else leaf,
            sample.copy(device),
        )
        # The mode has one flag for all threads: a backward in a device's thread meets it anywhere.
        with mode, torch.autograd.set_multithreading_enabled(False):
            return self.compute(run, sample, call)

    def _expect_unpredictable(self, run: Run, sample: Sample, error: Exception) -> None:
        try:
            self._predicted(run, sample, CPU)
        except UNPREDICTABLE:
            return
        raise Mismatch(
            f"fake tensors of the device cannot predict the result, those of the CPU can: "
            f"{type(error).__name__}: {_first_line(error)}"
        ) from error


class FakeBackward(BothWays, Fake):
    """Fake tensors of the device predict shapes, strides, dtypes and device of the gradients."""

    name = "fake_backward"
    profiles = in_profiles(
        standard=Dtypes.DEFAULT_DIFFERENTIABLE, full=Dtypes.DEFAULT_DIFFERENTIABLE
    )
    few = 6
    requires_grad = True

    def applies(self, subject: Subject, dtype: torch.dtype | None) -> str:
        """Operators with a backward."""
        return "" if subject.info.supports_autograd else "the operator has no gradient"

    def compute(self, run: Run, sample: Sample, call: Call) -> Any:
        """One gradient, or None, for each input that requires one."""
        grads = gradients(sample, call, run.seed, lambda output, *_: torch.ones_like(output))
        if not grads:
            raise NotApplicable("no result that depends on an input with a gradient")
        return grads


def check_prediction(predicted: Any, got: Any, by: str) -> None:
    """Raises Mismatch unless results have the metadata that was predicted for them."""
    expected_leaves, got_leaves = pytree.tree_leaves(predicted), pytree.tree_leaves(got)
    if len(expected_leaves) != len(got_leaves):
        raise Mismatch(f"{len(got_leaves)} results; predicted by {by}: {len(expected_leaves)}")
    for number, (one, other) in enumerate(zip(expected_leaves, got_leaves, strict=True)):
        if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
            if isinstance(one, torch.Tensor) != isinstance(other, torch.Tensor):
                kinds = type(other).__name__, type(one).__name__
                raise Mismatch(f"result {number}: {kinds[0]}; predicted by {by}: {kinds[1]}")
            continue
        expected, found = _metadata(one), _metadata(other)
        for what, value in expected.items():
            if value != found[what]:
                raise Mismatch(f"result {number}: {what} {found[what]}; predicted by {by}: {value}")


def _metadata(tensor: torch.Tensor) -> dict[str, Any]:
    described: dict[str, Any] = {
        "dtype": tensor.dtype,
        "layout": tensor.layout,
        "shape": tuple(tensor.shape),
    }
    if tensor.layout == torch.strided and not tensor.is_nested:
        described["conj bit"] = tensor.is_conj()
        described["neg bit"] = tensor.is_neg()
        described["strides"] = strides_that_matter(tensor)
    return described


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


PROPERTIES = [Meta, Fake, FakeBackward]
