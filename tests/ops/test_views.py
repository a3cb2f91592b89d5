# SPDX-License-Identifier: BSD-3-Clause
"""Views share memory with their base: a write through any of them shows in the other."""

import pytest
import torch
from oracle import DEVICE, compare, refused

from torch_npusim.sim import fallback

# name -> (view of a 4 x 6 float tensor)
REAL_VIEWS = {
    "select": lambda x: x[1],
    "slice": lambda x: x[1:3, ::2],
    "narrow": lambda x: x.narrow(1, 2, 3),
    "index None": lambda x: x[:, None],
    "t": lambda x: x.t(),
    "transpose": lambda x: x.transpose(0, 1),
    "permute": lambda x: x.permute(1, 0),
    "movedim": lambda x: x.movedim(0, 1),
    "view": lambda x: x.view(2, 12),
    "view dtype": lambda x: x.view(torch.int32),
    "view smaller dtype": lambda x: x.view(torch.int16),
    "view larger dtype": lambda x: x.view(torch.float64),
    "reshape": lambda x: x.reshape(3, 8),
    "flatten": lambda x: x.flatten(),
    "unflatten": lambda x: x.unflatten(1, (2, 3)),
    "ravel": lambda x: x.ravel(),
    "squeeze": lambda x: x[:1].squeeze(),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "expand": lambda x: x[None].expand(1, 4, 6),
    "as_strided": lambda x: x.as_strided((3, 2), (6, 2), 3),
    "unfold": lambda x: x.unfold(1, 2, 2),
    "diagonal": lambda x: x.diagonal(1),
    "chunk": lambda x: x.chunk(2)[1],
    "split": lambda x: x.split([1, 3])[1],
    "unbind": lambda x: x.unbind(1)[2],
    "tensor_split": lambda x: x.tensor_split(3, dim=1)[1],
    "hsplit": lambda x: x.hsplit(2)[1],
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "mT": lambda x: x.mT,
    "view_as": lambda x: x.view_as(torch.empty(6, 4)),
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "alias": torch.ops.aten.alias,
    "view_as_complex": lambda x: torch.view_as_complex(x.view(4, 3, 2)),
    "real": lambda x: x.real,
    "neg view": torch._neg_view,
    "set_": lambda x: torch.empty(0, device=x.device).set_(x),
    "nested": lambda x: x[1:].t()[::2].unfold(1, 2, 1)[..., 0],
}

# name -> (view of a 4 x 6 complex tensor)
COMPLEX_VIEWS = {
    "real": lambda x: x.real,
    "imag": lambda x: x.imag,
    "view_as_real": torch.view_as_real,
    "conj": lambda x: x.conj(),
    "imag of conj": lambda x: x.conj().imag,
    "adjoint": lambda x: x.mH,
    "view dtype": lambda x: x.view(torch.float32),
    "unfold": lambda x: x.unfold(0, 2, 1),
    "slice of imag": lambda x: x.imag[1:, ::3],
    "diagonal of conj": lambda x: x.conj().diagonal(),
}
CASES = [("real", name) for name in REAL_VIEWS] + [("complex", name) for name in COMPLEX_VIEWS]


def base_and_view(kind, name):
    if kind == "real":
        return torch.arange(24.0).reshape(4, 6), REAL_VIEWS[name]
    return torch.randn(4, 6, dtype=torch.complex64), COMPLEX_VIEWS[name]


def overlaps_itself(name):
    return name == "unfold"


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_write_through_the_view_shows_in_the_base(kind, name):
    base, view_of = base_and_view(kind, name)

    def write(x):
        view = view_of(x)
        if kind == "complex" and overlaps_itself(name):
            view = view[..., 0]
        view.fill_(3)
        return x

    compare(write, base)


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_write_to_the_base_shows_in_the_view(kind, name):
    base, view_of = base_and_view(kind, name)

    def write(x):
        view = view_of(x)
        x.mul_(2)
        return view

    compare(write, base.clone())


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_views_take_no_memory_and_run_no_kernel(kind, name):
    base, view_of = base_and_view(kind, name)
    x = base.to(DEVICE)
    fallback.reset()
    before = torch.npusim.memory_allocated()
    end = torch.npusim.current_stream()
    view = view_of(x)
    assert torch.npusim.memory_allocated() == before
    assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert fallback.counts() == {}
    assert end.query()


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_base_and_view_share_the_version_as_on_cpu(kind, name):
    base, view_of = base_and_view(kind, name)

    def versions(x):
        view = view_of(x)
        if kind == "complex" and overlaps_itself(name):
            view = view[..., 0]
        view.zero_()
        x.add_(1)
        return x._version, view._version

    on_host = versions(base.clone())
    assert versions(base.to(DEVICE)) == on_host


def test_in_place_writes_to_views_of_leaves_are_caught():
    x = torch.ones(3, device=DEVICE, requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf Variable"):
        x[0].fill_(2)
    y = x * 2
    square = y * y
    y[0] = 0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        square.sum().backward()


def test_view_relations_are_known():
    x = torch.zeros(4, 6, device=DEVICE)
    assert x.t()._base is x
    assert x[1].view(2, 3)._base is x
    assert torch.view_as_complex(x.view(4, 3, 2))._base is x


def test_impossible_complex_views_are_refused_as_on_cpu():
    refused(torch.view_as_complex, torch.zeros(4, 6), match="last dimension of size 2")
