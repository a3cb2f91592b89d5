# SPDX-License-Identifier: BSD-3-Clause
"""Shared by properties that call an operator in several ways.

Several questions per sample, calls that may be refused, and tensors that lie in unusual places.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from npusim_conformance.backend.device import CPU
from npusim_conformance.inputs.samples import Call, Sample
from npusim_conformance.inputs.transfer import tensors_of
from npusim_conformance.judge.agreement import Agreement
from npusim_conformance.properties.base import FAILURES_MAX, Property, Run, require
from npusim_conformance.verdict import Mismatch

Examine = Callable[[torch.device], None]

# Larger samples cost seconds and show nothing that smaller ones do not.
ELEMENTS_MAX = 100_000

# Operators whose result is defined by how their input lies in memory.
LAYOUT_DEFINED = frozenset(
    """as_strided as_strided.partial_views as_strided_copy as_strided_scatter resize_
    resize_as_""".split()
)


@dataclass(frozen=True)
class Part:
    """A question, with what a script needs so that it shows this and not the plain call."""

    ask: Examine
    into: str = ""  # out= as an expression of `result` and `device`
    sample: Callable[[], Sample] | None = None  # whose call shows it, if not the one asked about
    backward: bool = False  # whether it takes the gradient

    def __call__(self, device: torch.device) -> None:
        """Asks."""
        self.ask(device)


class PartedProperty(Property):
    """A property that asks several questions about each sample.

    Each is an attempt of its own, so that one which the CPU fails as well hides no other.
    """

    where: ClassVar[str] = "on the CPU"  # what results are held against, for messages

    @abstractmethod
    def parts(self, run: Run, sample: Sample) -> Iterator[Examine]:
        """The questions, as functions of a device that raise where it is wrong."""

    def wants_gradient(self, run: Run) -> bool:
        """Whether the samples' inputs should require a gradient."""
        return False

    def check(self, run: Run) -> None:
        """Asks everything about every sample."""
        run.agreement.where = self.where
        for sample in run.samples(self.wants_gradient(run)):
            raw = sample.raw
            tensors = tensors_of((raw.input, raw.args, raw.kwargs))
            if sum(tensor.numel() for tensor in tensors) > ELEMENTS_MAX:
                continue
            for part in self.parts(run, sample):
                run.attempt(sample.index, part)
                if len(run.failures) >= FAILURES_MAX:
                    return


def tried(call: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """(what the call returns, None) or (None, what it raises)."""
    try:
        return call(), None
    except Exception as error:
        return None, error


def same_decision(host: Exception | None, device: Exception | None, what: str) -> None:
    """Raises unless the device refuses what the CPU refuses, with that type or a subclass of it."""
    if isinstance(host, Mismatch):
        raise host  # torch's own fault, which the CPU is asked for too
    if device is not None and host is None:
        raise device
    if host is None:
        return
    if device is None:
        raise Mismatch(f"{what}: accepted, the CPU raises {_name(host)}")
    if not isinstance(device, type(host)):
        raise Mismatch(f"{what}: raises {_name(device)}; the CPU raises {_name(host)}")


def _name(error: Exception) -> str:
    line = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {line[:120]}"


def call_of(sample: Sample, function: Callable[..., Any], call: Call, **more: Any) -> Any:
    """The result of `function`, which takes what the sample's operator takes."""
    given, args, kwargs = call
    with torch.no_grad():
        return function(given, *args, **kwargs, **more)


def operands_stay(sample: Sample, call: Call, device: torch.device, what: str) -> None:
    """Raises Mismatch where the operands of a sample's call on `device` are others after it."""
    exactly = Agreement(bitwise=True, where="before")
    for before, after in zip(tensors_of(sample.copy(CPU)), tensors_of(call), strict=True):
        if after.device == device:  # others, as indices of tensor_split(), stay on the host
            exactly.check(before, after, device, f"an operand after {what}")


def takes_no_out(error: Exception) -> bool:
    """Whether a call with out= failed because there is no such signature."""
    return isinstance(error, TypeError) or "failed to match any schema" in str(error)


def strides_that_matter(tensor: torch.Tensor) -> tuple[int | None, ...]:
    """None where a dimension has one element; () of a tensor without elements."""
    if tensor.numel() == 0:
        return ()
    return tuple(
        stride if size > 1 else None
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )


def same_strides(expected: torch.Tensor, got: torch.Tensor) -> None:
    """Raises Mismatch where a result lies otherwise than the CPU's."""
    right, found = strides_that_matter(expected), strides_that_matter(got)
    require(right == found, f"strides {found}, on the CPU {right}")


def are_plain(tree: Any) -> bool:
    """Whether there are tensors, and all are strided: no sparse, nested or quantized ones."""
    tensors = tensors_of(tree)
    return bool(tensors) and all(
        tensor.layout == torch.strided and not tensor.is_quantized and not tensor.is_nested
        for tensor in tensors
    )


def garbage(count: int, dtype: torch.dtype) -> torch.Tensor:
    """`count` elements on the CPU that no operator computes: NaN, large integers, True."""
    byte = 0xFF if dtype.is_floating_point or dtype.is_complex else 0x7F
    byte = 1 if dtype == torch.bool else byte
    return torch.full((count * dtype.itemsize,), byte, dtype=torch.uint8).view(dtype)


def dense(shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """A contiguous CPU tensor of garbage."""
    return garbage(shape.numel(), dtype).view(shape)


def strided(shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """A CPU tensor of garbage with a gap after each element and an offset into its storage."""
    buffer = garbage(2 * shape.numel() + 1, dtype)
    strides = torch.empty(shape, device="meta").stride()
    return buffer.as_strided(shape, [2 * stride for stride in strides], 1)


def storage_of(tensor: torch.Tensor) -> int:
    """A number that two tensors have in common if, and only if, they share a storage."""
    number: int = tensor.untyped_storage()._cdata
    return number
