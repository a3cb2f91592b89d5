# SPDX-License-Identifier: BSD-3-Clause
"""Calls that must be refused: with which exception, and that the device lives on."""

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from npusim_conformance.backend.device import CPU
from npusim_conformance.inputs import torch_testing
from npusim_conformance.inputs.samples import Call, Sample
from npusim_conformance.inputs.subjects import Subject
from npusim_conformance.inputs.transfer import tensors_of
from npusim_conformance.properties.base import FAILURES_MAX, Dtypes, Property, Run, in_profiles
from npusim_conformance.properties.calls import Examine, PartedProperty, dense, tried
from npusim_conformance.verdict import Mismatch, NotApplicable


class Errors(Property):
    """Wrong calls raise what torch's database says, and the device works on after them."""

    name = "errors"
    profiles = in_profiles(smoke=Dtypes.NONE, standard=Dtypes.NONE, full=Dtypes.NONE)

    def applies(self, subject: Subject, dtype: torch.dtype | None) -> str:
        """Operators for which the database lists wrong calls."""
        listed = subject.info.error_inputs_func is not None
        return "" if listed else "torch's database lists no wrong calls"

    def check(self, run: Run) -> None:
        """Each wrong call."""
        calls = list(torch_testing.error_inputs(run.subject.info, str(run.device), run.seed))
        if not calls:
            raise NotApplicable("torch's database lists no wrong calls for this device")
        for number, call in enumerate(calls):
            run.attempt(number, partial(self._refused, run, call))
            if len(run.failures) >= FAILURES_MAX:
                return

    def _refused(self, run: Run, call: Any, device: torch.device) -> None:
        if device != run.device:
            call = self._same_on_host(run, call)
        got, error = tried(partial(self._run, run, call, device))
        kind, pattern = call.error_type, call.error_regex
        name = kind.__name__ if isinstance(kind, type) else str(kind)
        if error is None:
            expected, refused = tried(partial(self._on_host, run, call))
            if refused is not None or not _mixes(call):
                raise Mismatch(f"accepted; {name} expected, with {pattern!r}")
            run.agreement.check(expected, got, device, f"accepted, without the {name}; result")
            return
        if not isinstance(error, kind) and not self._says_the_same(run, call, error):
            raise Mismatch(f"raises {type(error).__name__}: {_line(error)}; {name} expected")
        if not re.search(pattern, str(error)) and not self._says_the_same(run, call, error):
            raise Mismatch(f"says {_line(error)!r}; {pattern!r} expected")
        works_on(device)

    @staticmethod
    def _run(run: Run, call: Any, device: torch.device) -> Any:
        sample = call.sample_input
        result = run.subject.info(sample.input, *sample.args, **sample.kwargs)
        if result is NotImplemented:  # how x + y becomes y.__radd__(x), and a TypeError in the end
            raise TypeError("NotImplemented")
        if device == run.device:
            run.under_test.synchronize()  # where errors come late
        return result

    @staticmethod
    def _says_the_same(run: Run, call: Any, error: Exception) -> bool:
        """Whether the CPU answers with this very error; the database has CUDA's words in mind."""
        _, host = tried(partial(Errors._on_host, run, call))
        return type(host) is type(error) and _line(host) == _line(error)

    @staticmethod
    def _on_host(run: Run, call: Any) -> Any:
        sample = call.sample_input
        given, args, kwargs = pytree.tree_map(_on_host, (sample.input, sample.args, sample.kwargs))
        return run.subject.info(given, *args, **kwargs)

    @staticmethod
    def _same_on_host(run: Run, call: Any) -> Any:
        for other in torch_testing.error_inputs(run.subject.info, "cpu", run.seed):
            if (other.error_type, other.error_regex) == (call.error_type, call.error_regex):
                return other
        raise NotApplicable("a wrong call that the CPU has not")


def works_on(device: torch.device) -> None:
    """Raises unless numbers still come back as they went."""
    numbers = torch.arange(1.0, 5.0)
    if numbers.to(device).cpu().tolist() != numbers.tolist():
        raise Mismatch("after the error, numbers do not come back from the device as they went")


def _mixes(call: Any) -> bool:
    """Whether its tensors lie on several devices: a device may take that, and be right."""
    sample = call.sample_input
    tensors = tensors_of((sample.input, sample.args, sample.kwargs))
    return len({tensor.device for tensor in tensors}) > 1


def _on_host(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.cpu()
    return CPU if isinstance(leaf, torch.device) else leaf


def _line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), "")[:160]


# Samples per case; what is refused depends on the operator and the argument.
MIXED_SAMPLES = 3
# Operators with tensors that may lie on the host, or where torch's own code does not care.
HOST_TAKERS = {
    **dict.fromkeys(
        ("__getitem__", "index_put", "_unsafe_masked_index", "_unsafe_masked_index_put_accumulate"),
        "indices may lie on the host",
    ),
    **dict.fromkeys(
        ("linspace.tensor_overload", "logspace.tensor_overload", "narrow"),
        "numbers are read out of tensors, wherever they lie",
    ),
    **dict.fromkeys(
        ("as_strided_scatter", "diagonal_scatter", "select_scatter", "slice_scatter"),
        "made of copy_(), which goes from any device to any",
    ),
    **dict.fromkeys(
        ("atleast_1d", "atleast_2d", "atleast_3d", "broadcast_tensors"),
        "each tensor is looked at by itself",
    ),
}


class MixedDevice(PartedProperty):
    """One tensor on the wrong device is refused, unless it is a scalar of the host."""

    name = "mixed_device"
    profiles = in_profiles(standard=Dtypes.DEFAULT, full=Dtypes.DEFAULT)

    def applies(self, subject: Subject, dtype: torch.dtype | None) -> str:
        """Operators all of whose tensors must be together."""
        return HOST_TAKERS.get(subject.name, "")

    def parts(self, run: Run, sample: Sample) -> Iterator[Examine]:
        """Every tensor in turn, first on the host, then on the second device."""
        if run.executed > MIXED_SAMPLES * 4:
            return
        for number in range(len(tensors_of(sample.copy(CPU)))):
            yield partial(self._refused, run, sample, number, CPU)
            if run.under_test.second is not None:
                yield partial(self._refused, run, sample, number, run.under_test.second)

    @staticmethod
    def _refused(
        run: Run, sample: Sample, number: int, elsewhere: torch.device, device: torch.device
    ) -> None:
        if device.type == "cpu":
            raise NotApplicable("the CPU is one device")
        call = _mixed(sample, number, elsewhere, device)
        moved = tensors_of(call)[number]
        given, args, kwargs = call
        result, error = tried(lambda: sample.operator(given, *args, **kwargs))
        what = f"tensor {number} on {elsewhere}, the others on {device}"
        if error is not None:
            if not isinstance(error, RuntimeError):
                raise Mismatch(f"{what}: {type(error).__name__}: {_line(error)}; RuntimeError due")
            works_on(device)
            return
        if not _matters(sample, number):
            raise NotApplicable("a tensor whose values do not matter")
        if moved.dim() > 0 or elsewhere != CPU:
            raise Mismatch(f"{what}: accepted, RuntimeError expected")
        if not sample.is_random:
            expected = sample.run(device)
            run.agreement.check(sample.finished(expected), sample.finished(result), device, what)


def _mixed(sample: Sample, number: int, elsewhere: torch.device, device: torch.device) -> Call:
    """The sample on `device`, with one of its tensors elsewhere."""
    there, structure = pytree.tree_flatten(sample.copy(device))
    other = pytree.tree_leaves(sample.copy(elsewhere))
    places = [place for place, leaf in enumerate(there) if isinstance(leaf, torch.Tensor)]
    together = sum(there[place].device == device for place in places)
    if together < 2 or there[places[number]].device != device:
        raise NotApplicable("no two tensors that must be on one device")
    there[places[number]] = other[places[number]]
    call: Call = pytree.tree_unflatten(there, structure)
    return call


def _matters(sample: Sample, number: int) -> bool:
    """Whether the result depends on this tensor's values, and on those of another."""
    count = len(tensors_of(sample.copy(CPU)))
    used = [other for other in range(count) if _changes(sample, other)]
    return number in used and len(used) > 1


def _changes(sample: Sample, number: int) -> bool:
    """Whether the CPU's result changes when one tensor becomes garbage; indices always count."""
    leaves, structure = pytree.tree_flatten(sample.copy(CPU))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    tensor = leaves[places[number]]
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    leaves[places[number]] = dense(tensor.shape, tensor.dtype)
    expected = sample.run(CPU)
    got, error = tried(lambda: sample.with_call(pytree.tree_unflatten(leaves, structure)).run(CPU))
    if error is not None:
        return True
    same = zip(tensors_of(expected), tensors_of(got), strict=True)
    return not all(one.shape == other.shape and torch.equal(one, other) for one, other in same)


PROPERTIES = [Errors, MixedDevice]
