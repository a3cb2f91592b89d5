# SPDX-License-Identifier: BSD-3-Clause
"""Views: where they lie, and the sizes that torch refuses to make."""

from collections.abc import Callable
from functools import partial

import torch

from npusim_conformance.contracts import contract, refuses, same
from npusim_conformance.properties.base import Run

View = Callable[[torch.Tensor], torch.Tensor]

# Views of a tensor (2, 3, 4); those of the second table need no contiguous one.
_OF_ROWS: dict[str, View] = {
    "view()": lambda base: base.view(6, 4),
    "view(-1)": lambda base: base.view(-1),
    "view_as()": lambda base: base.view_as(torch.empty(4, 6, device="meta")),
    "reshape()": lambda base: base.reshape(4, -1),
    "flatten()": lambda base: base.flatten(1),
    "ravel()": torch.Tensor.ravel,
    "unflatten()": lambda base: base.unflatten(2, (2, 2)),  # type: ignore[no-untyped-call]
}
_OF_ANY: dict[str, View] = {
    "permute()": lambda base: base.permute(2, 0, 1),
    "transpose()": lambda base: base.transpose(0, 2),
    "movedim()": lambda base: base.movedim(0, 2),
    "swapaxes()": lambda base: base.swapaxes(0, 1),
    ".mT": lambda base: base.mT,
    "unsqueeze()": lambda base: base.unsqueeze(1),
    "squeeze()": lambda base: base[:1].squeeze(0),
    "select()": lambda base: base.select(1, 2),
    "narrow()": lambda base: base.narrow(2, 1, 2),
    "a slice": lambda base: base[:, 1:],
    "a slice with a step": lambda base: base[:, :, 1::2],
    "split()": lambda base: base.split(2, dim=1)[1],  # type: ignore[no-untyped-call]
    "chunk()": lambda base: base.chunk(2, dim=2)[1],
    "tensor_split()": lambda base: base.tensor_split(2, dim=2)[1],
    "unbind()": lambda base: base.unbind(1)[2],
    "diagonal()": lambda base: base.diagonal(0, 1, 2),
    "expand()": lambda base: base[:1].expand(5, -1, -1),
    "as_strided()": lambda base: base.as_strided((2, 2), (5, 2), 3),
    "detach()": torch.Tensor.detach,
    "a view of a view": lambda base: base[1].t()[1:],
}


def _lie_alike(here: torch.Tensor, there: torch.Tensor, views: dict[str, View]) -> None:
    for name, view in views.items():
        expected, got = view(here), view(there)
        same(f"shape of {name}", got.shape, expected.shape)
        same(f"stride() of {name}", got.stride(), expected.stride())
        same(f"storage_offset() of {name}", got.storage_offset(), expected.storage_offset())
        storages = [one.untyped_storage().data_ptr() for one in (got, there)]
        same(f"the storage of {name}", storages[0], storages[1])
        same(f"values of {name}", got, expected)


@contract()
def views_lie_where_they_should(run: Run) -> None:
    """Each view has the CPU's shape, strides, offset and values, and its base's storage."""
    here = torch.arange(24.0).view(2, 3, 4)
    _lie_alike(here, here.to(run.device), _OF_ROWS | _OF_ANY)


@contract()
def views_of_parts_lie_where_they_should(run: Run) -> None:
    """Views of a tensor with an offset and gaps have the CPU's shape, strides and offset."""
    here = torch.arange(200.0)
    there = here.to(run.device)
    lies = (2, 3, 4), (60, 20, 5), 7
    _lie_alike(here.as_strided(*lies), there.as_strided(*lies), _OF_ANY)


@contract()
def views_of_other_dtypes_lie_where_they_should(run: Run) -> None:
    """view(dtype) of a part, to smaller and larger dtypes, has the CPU's place and values."""
    here = torch.arange(24, dtype=torch.int32)
    views: dict[str, View] = {
        "view(int16)": lambda base: base[2:].view(torch.int16),
        "view(uint8)": lambda base: base[3:5].view(torch.uint8),
        "view(float32)": lambda base: base[1:].view(torch.float32),
        "view(int64)": lambda base: base[2:6].view(torch.int64),
        "view(int16) of rows": lambda base: base[4:].view(4, 5)[1:].view(torch.int16),
        "view(int64) of rows": lambda base: base.view(4, 6)[1:, 2:].view(torch.int64),
    }
    _lie_alike(here, here.to(run.device), views)


@contract()
def windows_are_views(run: Run) -> None:
    """unfold() is a view: it has its base's storage, and strides that overlap."""
    here = torch.arange(24.0).view(2, 3, 4)
    _lie_alike(here, here.to(run.device), {"unfold()": lambda base: base.unfold(2, 2, 1)})


@contract()
def views_without_elements_lie_where_they_should(run: Run) -> None:
    """Views of tensors without elements have the CPU's shape and strides."""
    views: dict[str, View] = {
        "view()": lambda base: base.view(3, 0),
        "view() with a size to find": lambda base: base.view(-1, 5),
        "reshape()": lambda base: base.reshape(0, 7),
        "t()": torch.Tensor.t,
        "an empty slice": lambda base: base[:, 5:],
        "expand()": lambda base: base[:, :1].expand(0, 9),
        "unsqueeze()": lambda base: base.unsqueeze(0),
    }
    _lie_alike(torch.empty(0, 5), torch.empty(0, 5, device=run.device), views)


@contract()
def views_of_another_size_are_refused(run: Run) -> None:
    """view(), expand() and their kin refuse sizes that do not fit, and say so."""
    there = torch.arange(12.0).view(3, 4).to(run.device)
    calls: dict[str, Callable[[], object]] = {
        "view() of another size": lambda: there.view(7),
        "view() with two sizes to find": lambda: there.view(-1, -1),
        "view() that does not divide": lambda: there.view(5, -1),
        "reshape() of another size": lambda: there.reshape(5, 3),
        "expand() of a dimension that is not 1": lambda: there.expand(6, 4),
        "unflatten() of another size": lambda: there.unflatten(1, (3, 2)),  # type: ignore[no-untyped-call]
        "view() of a wider dtype": lambda: there[:, :3].view(torch.float64),
        "permute() with one dimension twice": lambda: there.permute(0, 0),
        "narrow() beyond the end": lambda: there.narrow(0, 2, 3),
        "select() beyond the end": lambda: there.select(0, 3),
    }
    for what, call in calls.items():
        refuses(what, call, (RuntimeError, IndexError))
    same("the tensor", there, torch.arange(12.0).view(3, 4))


@contract()
def as_strided_keeps_to_the_storage(run: Run) -> None:
    """as_strided() refuses places beyond the storage, and negative ones."""
    there = torch.arange(12.0).to(run.device)
    for what, lies in {
        "more elements": ((13,), (1,), 0),
        "strides beyond the end": ((4, 4), (4, 1), 0),
        "an offset beyond the end": ((2,), (1,), 11),
        "a negative stride": ((2,), (-1,), 3),
        "a negative offset": ((2,), (1,), -1),
        "sizes without as many strides": ((2, 2), (1,), 0),
    }.items():
        refuses(f"as_strided() with {what}", partial(there.as_strided, *lies))


@contract()
def impossible_sizes_are_refused(run: Run) -> None:
    """Factories refuse negative sizes, negative strides, and more elements than can be counted."""
    device = run.device
    calls: dict[str, Callable[[], object]] = {
        "empty() of -1": lambda: torch.empty(-1, device=device),
        "zeros() of -1 by 2": lambda: torch.zeros(-1, 2, device=device),
        "resize_() to -1": lambda: torch.ones(2).to(device).resize_(-1),
        "empty_strided() with a negative stride": lambda: torch.empty_strided(
            (2, 2), (-1, 1), device=device
        ),
        "empty_strided() without as many strides": lambda: torch.empty_strided(
            (2, 2), (1,), device=device
        ),
        "empty() of 2^65 elements": lambda: torch.empty((1 << 33, 1 << 32), device=device),
    }
    for what, call in calls.items():
        refuses(what, call)
    same("a tensor made after it", torch.ones(2).to(device), torch.ones(2))


@contract()
def set_refuses_what_does_not_fit(run: Run) -> None:
    """set_() refuses a tensor of another dtype and a negative offset, and changes nothing."""
    there, other = torch.ones(4).to(run.device), torch.ones(4, dtype=torch.int64).to(run.device)
    refuses("set_() of another dtype", lambda: there.set_(other))  # type: ignore[call-overload]
    storage = torch.ones(4).to(run.device).untyped_storage()
    refuses("set_() with a negative offset", lambda: there.set_(storage, -1, (2,), (1,)))
    same("the tensor", there, torch.ones(4))


@contract(no_cpu="there is one CPU", two_devices=True)
def set_refuses_another_device(run: Run) -> None:
    """set_() refuses the memory of another device."""
    second = run.under_test.second
    assert second is not None
    there, other = torch.ones(4).to(run.device), torch.ones(4).to(second)
    refuses("set_() of another device's", lambda: there.set_(other))  # type: ignore[call-overload]


@contract()
def set_reaches_beyond_its_storage(run: Run) -> None:
    """set_() of more than a storage holds makes the storage larger and keeps its values."""
    source = torch.arange(4.0).to(run.device)
    tensor = torch.empty(0, device=run.device)
    tensor.set_(source.untyped_storage(), 1, (7,), (1,))
    same("the elements that there were", tensor[:3], torch.tensor([1.0, 2.0, 3.0]))
    tensor[3:].fill_(9)
    same("the elements after", tensor[3:], torch.full((4,), 9.0))
    same("the source", source, torch.arange(4.0))


@contract()
def new_tensors_have_the_default_dtype(run: Run) -> None:
    """Factories without dtype= take torch's default dtype, and integers where it is theirs."""
    torch.set_default_dtype(torch.float64)
    try:
        for name, made in {
            "empty()": torch.empty(2, device=run.device),
            "empty_strided()": torch.empty_strided((2,), (1,), device=run.device),
            "zeros()": torch.zeros(2, device=run.device),
            "full()": torch.full((2,), 1.5, device=run.device),
            "linspace()": torch.linspace(0, 1, 3, device=run.device),
            "rand()": torch.rand(2, device=run.device),
            "tensor()": torch.tensor([1.5], device=run.device),
        }.items():
            same(f"dtype of {name}", made.dtype, torch.float64)
    finally:
        torch.set_default_dtype(torch.float32)
    same("dtype of arange()", torch.arange(3, device=run.device).dtype, torch.int64)
    same("dtype of full()", torch.full((2,), True, device=run.device).dtype, torch.bool)


@contract()
def items_of_views_are_theirs(run: Run) -> None:
    """item() of a part and of an expanded part reads that element."""
    here = torch.tensor([1 + 2j, 3 - 4j, 5 + 6j])
    there = here.to(run.device)
    for name, view in {
        "a part": lambda whole: whole[2],
        "a part of one element": lambda whole: whole[1:2],
        "an expanded part": lambda whole: whole[1].expand(1, 1),
    }.items():
        same(f"item() of {name}", view(there).item(), view(here).item())  # type: ignore[no-untyped-call]


@contract()
def items_of_conj_views_are_theirs(run: Run) -> None:
    """item() of a conj view is the conjugate."""
    there = torch.tensor([1 + 2j, 3 - 4j]).to(run.device)
    same("item()", there[1].conj().item(), 3 + 4j)
