# SPDX-License-Identifier: BSD-3-Clause
"""Copies: every direction, dtype, layout and bit; overlap; pinned; between devices."""

import itertools

import pytest
import torch
from oracle import DEVICE, assert_same, bits, compare

from torch_npusim.sim import clock

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex32,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]
CONVERTED = [torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float32, torch.complex64]


def values(dtype, *shape):
    return (torch.arange(torch.Size(shape).numel()) % 5).reshape(shape).to(dtype)


LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.mT,
    "strided": lambda x: x[..., ::2],
    "offset": lambda x: x[1:],
    "expanded": lambda x: x[:, :1].expand(x.shape),
    "channels_last": lambda x: x.to(memory_format=torch.channels_last),
    "empty": lambda x: x[:0],
    "0-d": lambda x: x.flatten()[3],
}


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_goes_there_and_back(dtype):
    x = values(dtype, 3, 4)
    there = x.to(DEVICE)
    assert there.dtype == dtype
    for way in (there, there.clone(), there.to("npusim:1"), there.t().contiguous().t()):
        assert torch.equal(bits(way), bits(x))


@pytest.mark.parametrize(("source", "target"), list(itertools.product(CONVERTED, CONVERTED)))
def test_a_copy_converts_the_dtype_in_every_direction(source, target):
    if source.is_complex and not target.is_complex:
        source = torch.float64  # a complex source loses its imaginary part, with a warning
    x = values(source, 2, 3)
    expected = torch.zeros(2, 3, dtype=target).copy_(x)
    for to, start in (("cpu", DEVICE), (DEVICE, "cpu"), (DEVICE, DEVICE), ("npusim:1", DEVICE)):
        got = torch.zeros(2, 3, dtype=target, device=to).copy_(x.to(start))
        assert torch.equal(bits(got), bits(expected)), (start, to)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("direction", ["h2d", "d2h", "d2d", "peer"])
def test_layouts_in_every_direction(direction, layout):
    start, to = {
        "h2d": ("cpu", DEVICE),
        "d2h": (DEVICE, "cpu"),
        "d2d": (DEVICE, DEVICE),
        "peer": (DEVICE, "npusim:1"),
    }[direction]
    base = torch.randn(2, 3, 4, 6)
    expected = LAYOUTS[layout](base)
    source = LAYOUTS[layout](base.to(start))
    moved = source.to(to, copy=True)
    reference = expected.to("cpu", copy=True)
    assert moved.stride() == reference.stride()
    assert torch.equal(moved.cpu(), expected)
    for other in LAYOUTS.values():  # into a target of the same shape but another layout
        target = other(torch.zeros(2, 3, 4, 6, device=to))
        if target.shape == source.shape and 0 not in target.stride():
            assert torch.equal(target.copy_(source).cpu(), expected)


def test_a_strided_target_keeps_what_lies_between():
    base = torch.zeros(4, 6, device=DEVICE)
    base[:, 1::2] = torch.ones(4, 3)
    assert base.sum(1).tolist() == [3] * 4
    assert base[:, ::2].sum().item() == 0


def test_broadcast_sources():
    compare(lambda x, y: x.copy_(y), torch.zeros(3, 4), torch.randn(4))
    compare(lambda x, y: x.copy_(y), torch.zeros(3, 4), torch.randn(3, 1))
    compare(lambda x, y: x.copy_(y), torch.zeros(3, 4), torch.tensor(2.0))
    with pytest.raises(RuntimeError, match="expand"):
        torch.zeros(3, 4, device=DEVICE).copy_(torch.zeros(5))


# --- Conj and neg bits (a copy of such a tensor used to recurse until the stack ended) ------------


@pytest.mark.parametrize("target", ["cpu", DEVICE, "npusim:1"])
@pytest.mark.parametrize("start", ["cpu", DEVICE])
def test_conj_tensors_are_copied_with_their_values(start, target):
    x = torch.randn(3, 4, dtype=torch.complex64)
    y = x.to(start)
    for source, expected in (
        (y.conj(), x.conj()),
        (y.conj().t(), x.conj().t()),
        (y.conj().imag, x.conj().imag),
        (torch._neg_view(y), -x),
        (torch._neg_view(y.conj()), -x.conj()),
    ):
        moved = source.to(target, copy=True)
        assert torch.equal(moved.cpu().resolve_conj().resolve_neg(), expected.resolve_conj())
        into = torch.zeros_like(expected.resolve_conj(), device=target)
        assert torch.equal(into.copy_(source).cpu(), expected)


def test_into_a_conj_view():
    def write(x, y):
        x.conj().copy_(y)
        x.imag.copy_(y.real)
        torch._neg_view(x).copy_(y)
        return x

    compare(write, torch.zeros(4, dtype=torch.complex64), torch.randn(4, dtype=torch.complex64))


def test_clones_of_conj_tensors():
    x = torch.randn(4, dtype=torch.complex64)
    compare(lambda x: x.conj().clone(), x)
    compare(lambda x: x.conj().resolve_conj(), x)
    compare(lambda x: x.conj().imag.resolve_neg(), x)
    compare(lambda x: x.conj().contiguous(), x)
    assert x.to(DEVICE).conj().clone().is_conj() == x.conj().clone().is_conj()


def test_zero_tensors_are_materialised():
    zeros = torch._efficientzerotensor((2, 3), device=DEVICE)
    assert zeros._is_zerotensor()
    target = torch.ones(2, 3, device=DEVICE)
    assert target.copy_(zeros).sum().item() == 0
    assert torch.equal(zeros.to("cpu"), torch.zeros(2, 3))
    assert (target + zeros).sum().item() == 0


# --- Overlap --------------------------------------------------------------------------------------


def test_overlapping_ranges_end_as_on_the_cpu():
    def shift(x):
        x[1:].copy_(x[:-1].clone())
        x[:-2].copy_(x[:-2])
        return x

    compare(shift, torch.arange(8.0))


def test_a_source_that_overlaps_its_target_is_refused_as_on_the_cpu():
    for device in ("cpu", DEVICE):
        x = torch.arange(3000.0, device=device)
        with pytest.raises(RuntimeError, match="unsupported operation: some elements"):
            x[:-1].copy_(x[1:])
        x[::2].copy_(x[1::2])  # interleaved, but apart
        assert x[:4].tolist() == [1, 1, 3, 3], device


def test_a_target_with_inner_overlap_is_refused_as_on_the_cpu():
    for device in ("cpu", DEVICE):
        target = torch.zeros(1, device=device).expand(3)
        with pytest.raises(RuntimeError, match="unsupported operation: more than one element"):
            target.copy_(torch.ones(3, device=device))


def test_self_copy_is_nothing():
    x = torch.arange(4.0, device=DEVICE)
    assert x.copy_(x) is x
    assert x.tolist() == [0, 1, 2, 3]


# --- Blocking -------------------------------------------------------------------------------------


def busy_after(copy):
    torch.npusim.synchronize()
    copy()
    return clock.stream_time_ns() > clock.host_time_ns()


def test_copies_from_and_to_pageable_memory_wait():
    host, there = torch.zeros(1 << 16), torch.zeros(1 << 16, device=DEVICE)
    assert not busy_after(lambda: there.copy_(host))
    assert not busy_after(lambda: there.copy_(host, non_blocking=True))
    assert not busy_after(lambda: host.copy_(there, non_blocking=True))
    assert not busy_after(lambda: there.cpu())


def test_non_blocking_copies_of_pinned_memory_do_not_wait():
    host = torch.arange(1 << 16, dtype=torch.float32).pin_memory()
    there = torch.zeros(1 << 16, device=DEVICE)
    assert busy_after(lambda: there.copy_(host, non_blocking=True))
    assert not busy_after(lambda: there.copy_(host))
    back = torch.zeros(1 << 16).pin_memory()
    assert busy_after(lambda: back.copy_(there, non_blocking=True))
    torch.npusim.synchronize()
    assert torch.equal(back, host)
    assert busy_after(lambda: there[1:].copy_(host[:-1], non_blocking=True))


def test_copies_within_and_between_devices_do_not_wait():
    a, b = torch.zeros(1 << 16, device=DEVICE), torch.ones(1 << 16, device=DEVICE)
    assert busy_after(lambda: a.copy_(b))
    c = torch.zeros(1 << 16, device="npusim:1")
    assert busy_after(lambda: c.copy_(b))
    with torch.npusim.device(1):
        assert busy_after(lambda: None) is False
    assert c.sum().item() == 1 << 16


def test_both_streams_wait_for_a_copy_between_devices():
    a = torch.ones(1 << 20, device=DEVICE)
    b = torch.zeros(1 << 20, device="npusim:1")
    torch.npusim.synchronize(0)
    torch.npusim.synchronize(1)
    b.copy_(a)
    ends = [clock.stream_time_ns(torch.npusim.current_stream(index)) for index in (0, 1)]
    assert ends[1] >= ends[0] > clock.host_time_ns()


def test_the_current_device_stays():
    a = torch.ones(4, device="npusim:1")
    a.to("npusim:0").copy_(a)
    a.cpu()
    assert torch.npusim.current_device() == 0


# --- Odd cases ------------------------------------------------------------------------------------


def test_copy_from_and_resize():
    target = torch.empty(0, device=DEVICE)
    torch._copy_from_and_resize(torch.arange(3.0), target)
    assert target.tolist() == [0, 1, 2]


def test_other_devices_are_refused():
    with pytest.raises((NotImplementedError, RuntimeError), match="meta"):
        torch.zeros(3, device=DEVICE).copy_(torch.zeros(3, device="meta"))


def test_large_copies_are_whole():
    x = torch.randn(1_000_003)
    compare(lambda x: x.clone(), x)
    assert_same(x.double(), x.to(DEVICE).double())


def test_to_without_a_change_is_the_tensor_itself():
    x = torch.zeros(3, device=DEVICE)
    assert x.to(DEVICE) is x
    assert x.to("npusim:0") is x
    assert x.to(DEVICE, copy=True) is not x


def test_items():
    for dtype in DTYPES[:16]:
        value = values(dtype, 5)[3]
        assert value.to(DEVICE).item() == value.item(), dtype
    assert torch.tensor(1 + 2j, device=DEVICE).conj().item() == 1 - 2j
