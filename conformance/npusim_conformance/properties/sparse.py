# SPDX-License-Identifier: BSD-3-Clause
"""Sparse operands: samples turned sparse on the CPU, wherever the CPU takes them so.

torch's database makes sparse samples for a few operators only, and none with out=, in place on
uncoalesced tensors, or away from the current device.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar

import torch
from torch.utils import _pytree as pytree

from npusim_conformance.backend.device import CPU
from npusim_conformance.inputs.samples import Call, Sample
from npusim_conformance.inputs.subjects import Subject
from npusim_conformance.inputs.transfer import Transfer
from npusim_conformance.properties.base import (
    FAILURES_MAX,
    Dtypes,
    Property,
    Run,
    in_profiles,
    values_are_defined,
)
from npusim_conformance.properties.calls import Examine, call_of, same_decision, tried
from npusim_conformance.verdict import NotApplicable

SAMPLES = 3
ELEMENTS_MAX = 1000

# Of compressed tensors these give indices that nobody has written: torch.zeros() had that too
# (pytorch/pytorch 84997).
_UNWRITTEN_INDICES = frozenset({"new_full", "new_ones"})


def coalesced(tensor: torch.Tensor) -> torch.Tensor:
    """COO without duplicates."""
    return tensor.to_sparse()


def uncoalesced(tensor: torch.Tensor) -> torch.Tensor:
    """COO with each element in two pieces, far from each other."""
    whole = tensor.to_sparse().coalesce()
    indices, values = whole.indices(), whole.values()
    ones = torch.ones_like(values)
    pieces = [values, ones] if values.dtype == torch.bool else [values - ones, ones]
    return torch.sparse_coo_tensor(
        torch.cat([indices, indices.flip(1)], 1),
        torch.cat([pieces[0], pieces[1].flip(0)]),
        tensor.shape,
    )


def compressed(tensor: torch.Tensor) -> torch.Tensor:
    """CSR."""
    return tensor.to_sparse_csr()


class _SparseProperty(Property):
    """Asks about calls with a sparse first tensor, or with all tensors sparse."""

    profiles = in_profiles(standard=Dtypes.DEFAULT, full=Dtypes.DEFAULT)
    layouts: ClassVar[tuple[Callable[[torch.Tensor], torch.Tensor], ...]]

    def check(self, run: Run) -> None:
        """A few samples in each layout."""
        run.not_applicable = "the CPU takes no sample with sparse tensors"
        operator = run.subject.info
        for sample in run.few(SAMPLES):
            if sample.is_random or not values_are_defined(operator):
                raise NotApplicable("the result is random or undefined")
            for layout in self.layouts:
                if layout is compressed and operator.name in _UNWRITTEN_INDICES:
                    continue
                for call in _sparse_calls(sample, layout):
                    for part in self.parts(run, sample, call):
                        run.attempt(sample.index, part)
                        if len(run.failures) >= FAILURES_MAX:
                            return

    def parts(self, run: Run, sample: Sample, call: Call) -> Iterator[Examine]:
        """The questions about one call, which lies on the CPU."""
        raise NotImplementedError


def _sparse_calls(sample: Sample, layout: Callable[[torch.Tensor], torch.Tensor]) -> list[Call]:
    """The sample with its first tensor sparse, and with all of them."""
    leaves, structure = pytree.tree_flatten(sample.copy(CPU))
    places = [place for place, leaf in enumerate(leaves) if _can_be_sparse(leaf)]
    if not places or not isinstance(leaves[0], torch.Tensor):
        return []
    calls = []
    for chosen in ([places[0]], places) if len(places) > 1 else (places,):
        sparse = list(leaves)
        for place in chosen:
            made, error = tried(partial(layout, leaves[place].detach()))
            if error is not None:
                break
            sparse[place] = made
        else:
            calls.append(pytree.tree_unflatten(sparse, structure))
    return calls


def _can_be_sparse(leaf: Any) -> bool:
    return (
        isinstance(leaf, torch.Tensor)
        and leaf.layout == torch.strided
        and leaf.dim() > 0
        and 0 < leaf.numel() <= ELEMENTS_MAX
        and not leaf.is_quantized
    )


def _settled(tree: Any) -> Any:
    """COO tensors coalesced, since the order of duplicates means nothing."""

    def settle(leaf: Any) -> Any:
        is_coo = isinstance(leaf, torch.Tensor) and leaf.layout == torch.sparse_coo
        return leaf.coalesce() if is_coo else leaf

    return pytree.tree_map(settle, tree)


def _compare(
    run: Run,
    result: Callable[[torch.device], Any],
    device: torch.device,
    what: str,
    place: torch.device | None = None,
) -> None:
    """Holds result(place) against result(CPU)."""
    place = place or device
    expected, refused = tried(lambda: result(CPU))
    if refused is not None:
        raise NotApplicable("the CPU refuses it")
    got, error = tried(lambda: result(place))
    same_decision(refused, error, what)
    run.agreement.check(_settled(expected), _settled(got), place, what)


def _functional(sample: Sample, call: Call, device: torch.device) -> Any:
    return call_of(sample, sample.operator, Transfer(device)(call))


class SparseOut(_SparseProperty):
    """Sparse operands, and out= for a sparse result: the CPU's result, in out= as well."""

    name = "sparse_out"
    layouts = (coalesced, uncoalesced, compressed)

    def parts(self, run: Run, sample: Sample, call: Call) -> Iterator[Examine]:
        """Without out=, then with an empty and with a full one."""
        expected, refused = tried(lambda: _functional(sample, call, CPU))
        if refused is not None:
            return

        def functional(device: torch.device) -> None:
            _compare(run, partial(_functional, sample, call), device, "sparse operands")

        yield functional
        if sample.operator.supports_out and isinstance(expected, torch.Tensor):
            for what, out in _outs(expected):
                yield partial(self._into, run, sample, call, out, what)

    @staticmethod
    def _into(
        run: Run, sample: Sample, call: Call, out: torch.Tensor, what: str, device: torch.device
    ) -> None:
        def result(where: torch.device) -> Any:
            moved, into = Transfer(where)((call, out))
            call_of(sample, sample.operator, moved, out=into)
            return into

        _compare(run, result, device, what)


def _outs(expected: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors that the result may be written to, on the CPU."""
    layout, shape, dtype = expected.layout, expected.shape, expected.dtype
    if layout in (torch.sparse_coo, torch.sparse_csr):
        yield f"an empty {layout} out=", torch.zeros(shape, dtype=dtype, layout=layout)
        full, error = tried(lambda: torch.ones(shape, dtype=dtype).to_sparse(layout=layout))
        if error is None:
            yield f"a full {layout} out=", full


class SparseInplace(_SparseProperty):
    """In place on sparse tensors, coalesced or not, what the CPU does in place."""

    name = "sparse_inplace"
    layouts = (coalesced, uncoalesced, compressed)

    def applies(self, subject: Subject, dtype: torch.dtype | None) -> str:
        """Operators with an in-place form."""
        return "" if subject.info.inplace_variant else "the operator has no in-place form"

    def parts(self, run: Run, sample: Sample, call: Call) -> Iterator[Examine]:
        """The tensor that was written to."""

        def result(device: torch.device) -> Any:
            moved = Transfer(device)(call)
            call_of(sample, sample.operator.inplace_variant, moved)
            return moved[0]

        if tried(lambda: result(CPU))[1] is None:
            coo = isinstance(call[0], torch.Tensor) and call[0].layout == torch.sparse_coo
            kind = "an uncoalesced" if coo and not call[0].is_coalesced() else "a sparse"
            yield lambda device: _compare(run, result, device, f"in place on {kind} tensor")


class SparseSecondDevice(_SparseProperty):
    """Sparse operands on the second device, while the first is current."""

    name = "sparse_second_device"
    layouts = (coalesced, compressed)

    def parts(self, run: Run, sample: Sample, call: Call) -> Iterator[Examine]:
        """The result, which must lie on the second device."""
        second = run.under_test.second
        if second is None:
            raise NotApplicable("there is one device only")
        if tried(lambda: _functional(sample, call, CPU))[1] is None:
            yield partial(self._there, run, sample, call, second)

    @staticmethod
    def _there(
        run: Run, sample: Sample, call: Call, second: torch.device, device: torch.device
    ) -> None:
        if device.type == "cpu":
            raise NotApplicable("the CPU is one device")
        what = f"sparse operands on {second} while {device} is current"
        _compare(run, partial(_functional, sample, call), device, what, second)


PROPERTIES = [SparseOut, SparseInplace, SparseSecondDevice]
