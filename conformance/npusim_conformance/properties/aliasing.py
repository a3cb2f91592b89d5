# SPDX-License-Identifier: BSD-3-Clause
"""Which results share memory with which inputs, and what writes through them change."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch

from npusim_conformance.backend.device import CPU
from npusim_conformance.inputs.samples import Sample
from npusim_conformance.inputs.transfer import Transfer, tensors_of
from npusim_conformance.judge.agreement import plain, same_bits
from npusim_conformance.properties.base import Dtypes, Run, in_profiles, require
from npusim_conformance.properties.calls import (
    Examine,
    Part,
    PartedProperty,
    are_plain,
    call_of,
    same_decision,
    storage_of,
    tried,
)
from npusim_conformance.properties.layouts import laid_out, with_gaps
from npusim_conformance.verdict import Mismatch, NotApplicable

# Whether a copying operator aliases after all does not depend on many samples.
COPYING_SAMPLES = 5


class Aliasing(PartedProperty):
    """Results share memory with inputs where the CPU's do: writes are seen on both sides."""

    name = "aliasing"
    # One complex dtype: real() and imag() are views of complex tensors only.
    profiles = in_profiles(standard=Dtypes.DEFAULT_AND_COMPLEX, full=Dtypes.DEFAULT_AND_COMPLEX)

    def parts(self, run: Run, sample: Sample) -> Iterator[Examine]:
        """Storages first, of inputs with gaps too. Then writes, where something is shared."""
        on_host, _ = tried(lambda: _Shared(sample, CPU))
        shared = len(on_host.pairs) if on_host is not None else 0
        if not shared and run.executed >= COPYING_SAMPLES:
            return
        yield partial(self._storages, sample)
        if shared:
            gapped = cache(partial(laid_out, sample, with_gaps))
            yield Part(lambda device: self._storages(gapped(), device), sample=gapped)
        for number in range(shared):
            yield partial(self._writes, sample, number)

    def _storages(self, sample: Sample, device: torch.device) -> None:
        on_host, there = _Shared(sample, CPU), _Shared(sample, device)
        _same_pairs(on_host, there)
        for (result, given), host, own in zip(
            on_host.pairs, on_host.facts, there.facts, strict=True
        ):
            for fact, value in host.items():
                require(
                    own[fact] == value,
                    f"result {result} of input {given}: {fact} {own[fact]}, on the CPU {value}",
                )

    def _writes(self, sample: Sample, number: int, device: torch.device) -> None:
        host, there = _Shared(sample, CPU), _Shared(sample, device)
        _same_pairs(host, there)
        for target, seen in ((0, 1), (1, 0)):
            expected, refused = tried(partial(host.write, number, target, seen))
            got, error = tried(partial(there.write, number, target, seen))
            what = f"a write through {'the result' if target == 0 else 'the input'}"
            other = "the input" if target == 0 else "the result"
            same_decision(refused, error, what)
            if error is not None:
                continue  # elements that share an address
            if not same_bits(expected.values, got.values):
                raise Mismatch(f"{what} does not show in {other} as on the CPU")
            require(
                got.versions == expected.versions,
                f"{what} raises the version counters of result and input by {got.versions}, "
                f"on the CPU by {expected.versions}",
            )


@dataclass(frozen=True)
class _Seen:
    """The effect on one tensor of a write through the other."""

    values: torch.Tensor
    versions: tuple[int, int]


class _Shared:
    """A call on one device, and which of its results lie in the memory of which inputs."""

    def __init__(self, sample: Sample, device: torch.device) -> None:
        self.sample = sample
        call = sample.copy(device)
        self.inputs = tensors_of(call)
        results = call_of(sample, sample.operator, call)
        self.results = tensors_of(results)
        if not (are_plain(results) and are_plain(call)):
            raise NotApplicable("not all tensors are strided ones")
        self.pairs = [
            (result, given)
            for result, one in enumerate(self.results)
            for given, other in enumerate(self.inputs)
            if storage_of(one) == storage_of(other)
        ]

    @property
    def facts(self) -> list[dict[str, Any]]:
        """How the results of all pairs are views."""
        return [self._facts(*pair) for pair in self.pairs]

    def _facts(self, result: int, given: int) -> dict[str, Any]:
        one, other = self.results[result], self.inputs[given]
        return {
            "is the input itself:": one is other,
            "_is_view()": one._is_view(),
            "_base is the input:": one._base is other,
            "storage_offset()": one.storage_offset(),
            "shape": tuple(one.shape),
            "strides": one.stride(),
        }

    def write(self, number: int, target: int, seen: int) -> _Seen:
        """Writes numbers through one side of a pair (0: the result) and looks at the other."""
        result, given = self.pairs[number]
        pair = (self.results[result], self.inputs[given])
        before = [tensor._version for tensor in pair]
        ramp = _ramp(pair[target], 2 + target)
        with torch.no_grad():
            pair[target].copy_(Transfer(pair[target].device)(ramp))
        now = [tensor._version for tensor in pair]
        return _Seen(plain(pair[seen]), (now[0] - before[0], now[1] - before[1]))


def _same_pairs(host: _Shared, there: _Shared) -> None:
    for result, given in sorted(set(host.pairs) ^ set(there.pairs)):
        shares = "shares" if (result, given) in there.pairs else "does not share"
        does = "does not" if (result, given) in there.pairs else "does"
        raise Mismatch(f"result {result} {shares} memory with input {given}; on the CPU it {does}")


def _ramp(like: torch.Tensor, first: int) -> torch.Tensor:
    """Small numbers on the CPU, different from each other as far as the dtype allows.

    Elements that share an address get one number: which of them is written last is no promise.
    """
    reach = sum((size - 1) * step for size, step in zip(like.shape, like.stride(), strict=True))
    count = torch.arange(first, first + max(reach, 0) + 1) % 97
    laid = count.as_strided(like.shape, like.stride())
    return laid.clone(memory_format=torch.contiguous_format).to(like.dtype)


PROPERTIES = [Aliasing]
