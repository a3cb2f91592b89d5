# SPDX-License-Identifier: BSD-3-Clause
"""Copies: every direction, dtype, layout and bit; overlap; pinned; between devices."""

import pytest
import torch
from oracle import DEVICE, compare

from torch_npusim.sim import clock

# --- Conj and neg bits (a copy of such a tensor used to recurse until the stack ended) ------------


def test_into_a_conj_view():
    def write(x, y):
        x.conj().copy_(y)
        x.imag.copy_(y.real)
        torch._neg_view(x).copy_(y)
        return x

    compare(write, torch.zeros(4, dtype=torch.complex64), torch.randn(4, dtype=torch.complex64))


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
        with pytest.raises(RuntimeError, match="unsupported operation: some elements"):
            x.copy_(x[:1])  # to be expanded


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


# --- Odd cases ------------------------------------------------------------------------------------


def test_copy_from_and_resize():
    target = torch.empty(0, device=DEVICE)
    torch._copy_from_and_resize(torch.arange(3.0), target)
    assert target.tolist() == [0, 1, 2]


def test_other_devices_are_refused():
    with pytest.raises((NotImplementedError, RuntimeError), match="meta"):
        torch.zeros(3, device=DEVICE).copy_(torch.zeros(3, device="meta"))
