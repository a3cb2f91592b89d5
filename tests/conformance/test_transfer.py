# SPDX-License-Identifier: BSD-3-Clause
"""Samples reach a device exactly as they lie on the CPU."""

from collections import namedtuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim_conformance.inputs.transfer import Transfer, tensors_of

DEVICES = ["cpu", "npusim"]


@st.composite
def views(draw):
    """A tensor that looks somehow at a larger storage, with some of conj, neg and requires_grad."""
    dtype = draw(st.sampled_from([torch.float32, torch.complex64, torch.int16, torch.bool]))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    strides = [draw(st.integers(0, 4)) for _ in shape]
    offset = draw(st.integers(0, 3))
    reach = offset + sum(max(0, size - 1) * stride for size, stride in zip(shape, strides))  # noqa: B905
    base = torch.arange(reach + 3).to(dtype)
    tensor = base.as_strided(shape, strides, offset)
    if dtype.is_complex and draw(st.booleans()):
        tensor = tensor.conj()
    if (dtype.is_complex or dtype.is_floating_point) and draw(st.booleans()):
        tensor = torch._neg_view(tensor)
    if dtype.is_floating_point and draw(st.booleans()):
        tensor = tensor.detach().requires_grad_()
    return tensor


def facts(tensor):
    return (
        tensor.dtype,
        tensor.shape,
        tensor.stride(),
        tensor.storage_offset(),
        tensor.is_conj(),
        tensor.is_neg(),
        tensor.requires_grad,
        tensor.detach().cpu().tolist(),
    )


@pytest.mark.parametrize("device", DEVICES)
@settings(deadline=None, max_examples=60)
@given(tensor=views())
def test_a_tensor_arrives_as_it_lies(device, tensor):
    moved = Transfer(device)(tensor)
    assert moved.device.type == device
    assert facts(moved) == facts(tensor)
    assert moved.data_ptr() != tensor.data_ptr() or tensor.numel() == 0


@pytest.mark.parametrize("device", DEVICES)
def test_shared_storages_stay_shared(device):
    base = torch.arange(6.0)
    one, other, alone = Transfer(device)([base[:4], {"other": base[2:]}, torch.ones(2)])
    other = other["other"]
    assert one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
    assert alone.untyped_storage().data_ptr() != one.untyped_storage().data_ptr()
    one[2] = 9.0
    assert other[0].item() == 9.0
    assert base[2].item() == 2.0  # a copy, on the CPU too


def test_two_calls_of_one_transfer_share_as_well():
    base = torch.arange(4.0)
    transfer = Transfer("npusim")
    one, _ = transfer([base[:2], base[1:]])
    again = transfer(base[1:])
    assert one.untyped_storage().data_ptr() == again.untyped_storage().data_ptr()


def test_names_of_the_cpu_become_names_of_the_device():
    tree = {"device": "cpu", "other": "meta", "both": (torch.device("cpu"), torch.device("meta"))}
    moved = Transfer("npusim:0")(tree)
    device = torch.device("npusim:0")
    assert moved == {"device": device, "other": "meta", "both": (device, torch.device("meta"))}


def test_what_holds_no_tensors_is_itself():
    tree = [1, 2.5, None, torch.float16, slice(1, 2), Ellipsis, "text"]
    assert Transfer("npusim")(tree) == tree


def test_named_tuples_keep_their_type():
    Pair = namedtuple("Pair", "one other")
    moved = Transfer("npusim")(Pair(torch.ones(1), 2))
    assert isinstance(moved, Pair)
    assert (moved.one.device.type, moved.other) == ("npusim", 2)


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_sparse_tensors_arrive(layout):
    sparse = torch.eye(3).to_sparse(layout=layout)
    moved = Transfer("npusim")(sparse)
    assert (moved.layout, moved.device.type) == (layout, "npusim")
    assert moved.to_dense().cpu().tolist() == torch.eye(3).tolist()


def test_tensors_of_keeps_the_order():
    one, other = torch.ones(1), torch.ones(2)
    found = tensors_of([{"a": one}, (other, [one]), "text"])
    assert [id(tensor) for tensor in found] == [id(one), id(other), id(one)]
