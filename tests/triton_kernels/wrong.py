# SPDX-License-Identifier: BSD-3-Clause
"""Kernels with one defect each, on the line that is marked; test_check.py expects them found."""

import triton
import triton.language as tl


@triton.jit
def load_without_mask(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)  # outside
    tl.store(out_ptr + at, x, mask=at < n)


@triton.jit
def store_without_mask(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    tl.store(out_ptr + at, x)  # outside


@triton.jit
def one_too_many(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at <= n, other=0.0)  # outside
    tl.store(out_ptr + at, x, mask=at < n)


@triton.jit
def before_the_start(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at - 1, mask=at < n, other=0.0)  # outside
    tl.store(out_ptr + at, x, mask=at < n)


@triton.jit
def mean_of_masked_lanes(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)  # undefined
    tl.store(out_ptr, tl.sum(x, axis=0) / n)


@triton.jit
def accumulate_in_what_is_empty(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    before = tl.load(out_ptr + at, mask=inside)  # uninitialised
    tl.store(out_ptr + at, before + tl.load(x_ptr + at, mask=inside), mask=inside)


@triton.jit
def atomic_add_to_what_is_empty(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    tl.atomic_add(out_ptr, tl.sum(x, axis=0))  # uninitialised


@triton.jit
def sum_without_atomics(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    before = tl.load(out_ptr)  # conflict
    tl.store(out_ptr, before + tl.sum(x, axis=0))


@triton.jit
def blocks_that_overlap(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    at = pid * (BLOCK // 2) + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    tl.store(out_ptr + at, x + pid, mask=at < n)  # conflict


@triton.jit
def smooth_in_place(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = tl.load(x_ptr + at, mask=at < n, other=0.0)
    left = tl.load(x_ptr + at - 1, mask=(at < n) & (at > 0), other=0.0)  # conflict
    tl.store(x_ptr + at, (here + left) / 2, mask=at < n)


@triton.jit
def last_one_wins(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    positive = tl.sum((x > 0).to(tl.int32), axis=0)
    tl.atomic_xchg(out_ptr, positive)  # order


@triton.jit
def half_of_the_blocks(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK // 2)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    tl.store(out_ptr + at, x, mask=at < n)  # unwritten


@triton.jit
def sum_beside_the_lock(x_ptr, out_ptr, lock_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    before = tl.load(out_ptr)
    tl.atomic_xchg(lock_ptr, 0)
    tl.store(out_ptr, before + tl.sum(x, axis=0))  # conflict


@triton.jit
def lock_that_is_kept(x_ptr, out_ptr, lock_ptr, n, BLOCK: tl.constexpr):
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:  # hang
        pass
    tl.store(out_ptr, tl.load(out_ptr) + tl.program_id(0))


@triton.jit
def neighbours_columns(x_ptr, out_ptr, stride, columns, BLOCK: tl.constexpr):
    at = tl.program_id(0) * stride + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=tl.arange(0, BLOCK) < columns, other=0.0)
    tl.store(out_ptr + at, x)  # outside


@triton.jit
def stride_of_another_layout(x_ptr, out_ptr, stride, columns, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    inside = at < columns
    x = tl.load(x_ptr + tl.program_id(0) * columns + at, mask=inside, other=0.0)  # outside
    tl.store(out_ptr + tl.program_id(0) * stride + at, x, mask=inside)


@triton.jit
def offset_of_32_bits(x_ptr, out_ptr, stride, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0) * stride  # overflow
    x = tl.load(x_ptr + row.to(tl.int64) + at, mask=at < n)
    tl.store(out_ptr + tl.program_id(0) * n + at, x, mask=at < n)


@triton.jit
def lanes_that_meet(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    tl.store(out_ptr + at // 2, x, mask=at < n)  # lanes
