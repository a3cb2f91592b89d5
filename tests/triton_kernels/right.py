# SPDX-License-Identifier: BSD-3-Clause
"""Right twins of kernels of wrong.py, in which nothing may be found; and bfloat16."""

import triton
import triton.language as tl


@triton.jit
def neighbours_columns(x_ptr, out_ptr, stride, columns, BLOCK: tl.constexpr):
    at = tl.program_id(0) * stride + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < columns
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=inside), mask=inside)


@triton.jit
def stride_of_another_layout(x_ptr, out_ptr, stride, columns, BLOCK: tl.constexpr):
    at = tl.program_id(0) * stride + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < columns
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=inside), mask=inside)


@triton.jit
def offset_of_32_bits(x_ptr, out_ptr, stride, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    unused = tl.program_id(0) * stride  # overflows
    row = tl.where(at >= n, unused, tl.program_id(0).to(tl.int64) * stride)
    x = tl.load(x_ptr + row + at, mask=at < n)
    tl.store(out_ptr + tl.program_id(0) * n + at, x, mask=at < n)


@triton.jit
def lanes_that_meet(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at // 2 * 2, mask=at < n, other=0.0)
    tl.store(out_ptr + at // 2, x, mask=at < n)  # both lanes store the same


@triton.autotune([triton.Config({"BLOCK": size}) for size in (4, 32, 64)], key=["n"])
@triton.jit
def tuned(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)  # right for the size that divides n
    tl.store(out_ptr + at, 2 * x)


@triton.jit
def bfloat16(x_ptr, y_ptr, sum_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x, y = tl.load(x_ptr + at), tl.load(y_ptr + at)
    tl.store(out_ptr + at, x + y)
    tl.store(out_ptr + n + at, x * y)
    tl.store(out_ptr + 2 * n + at, tl.where(x > y, x, -y))
    tl.store(out_ptr + 3 * n + at, tl.maximum(x, tl.abs(y)))
    tl.store(out_ptr + 4 * n + at, (x.to(tl.float32) * 1.01).to(tl.bfloat16))
    tl.store(out_ptr + 5 * n + at, (x * 8).to(tl.int32).to(tl.bfloat16))
    tl.store(out_ptr + 6 * n + at, tl.exp(x.to(tl.float32)))
    tl.store(out_ptr + 7 * n + at, tl.sum(x, axis=0) + tl.zeros((BLOCK,), tl.float32))
    tl.atomic_add(sum_ptr + tl.zeros((BLOCK,), tl.int32), x)


@triton.jit
def product(a_ptr, b_ptr, out_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    tl.store(out_ptr + at, tl.dot(tl.load(a_ptr + at), tl.load(b_ptr + at)))
