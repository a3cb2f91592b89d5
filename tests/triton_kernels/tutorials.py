# SPDX-License-Identifier: BSD-3-Clause
"""The kernels that Triton's tutorials teach, written anew: what a right kernel looks like."""

import triton
import triton.language as tl


@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    total = tl.load(x_ptr + at, mask=inside) + tl.load(y_ptr + at, mask=inside)
    tl.store(out_ptr + at, total, mask=inside)


@triton.jit
def softmax(out_ptr, x_ptr, x_stride, out_stride, rows, columns, BLOCK: tl.constexpr):
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0)):
        at = tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * x_stride + at, mask=at < columns, other=-float("inf"))
        raised = tl.exp(x - tl.max(x, axis=0))
        tl.store(out_ptr + row * out_stride + at, raised / tl.sum(raised, axis=0), at < columns)


@triton.jit
def matmul(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        a_inside = (rows[:, None] < M) & (k[None, :] < K)
        b_inside = (k[:, None] < K) & (columns[None, :] < N)
        a = tl.load(a_ptr + rows[:, None] * K + k[None, :], mask=a_inside, other=0.0)
        b = tl.load(b_ptr + k[:, None] * N + columns[None, :], mask=b_inside, other=0.0)
        total = tl.dot(a, b, total)
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(c_ptr + rows[:, None] * N + columns[None, :], total, mask=inside)


@triton.jit
def dropout(x_ptr, out_ptr, n, p, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    x = tl.load(x_ptr + at, mask=inside)
    kept = tl.rand(seed, at) > p
    tl.store(out_ptr + at, tl.where(kept, x / (1 - p), 0.0), mask=inside)


@triton.jit
def layer_norm(x_ptr, y_ptr, w_ptr, b_ptr, mean_ptr, rstd_ptr, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < n
    x = tl.load(x_ptr + row * n + at, mask=inside, other=0.0)
    mean = tl.sum(x, axis=0) / n
    centred = tl.where(inside, x - mean, 0.0)
    rstd = 1 / tl.sqrt(tl.sum(centred * centred, axis=0) / n + eps)
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)
    w = tl.load(w_ptr + at, mask=inside)
    b = tl.load(b_ptr + at, mask=inside)
    tl.store(y_ptr + row * n + at, centred * rstd * w + b, mask=inside)


@triton.jit
def layer_norm_backward(
    dx_ptr,
    dy_ptr,
    dw_ptr,
    x_ptr,
    w_ptr,
    mean_ptr,
    rstd_ptr,
    locks_ptr,
    n,
    GROUPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The gradient of the weight is summed in GROUPS rows, each under a lock of its own."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < n
    x = tl.load(x_ptr + row * n + at, mask=inside, other=0.0)
    dy = tl.load(dy_ptr + row * n + at, mask=inside, other=0.0)
    w = tl.load(w_ptr + at, mask=inside, other=0.0)
    rstd = tl.load(rstd_ptr + row)
    hat = tl.where(inside, (x - tl.load(mean_ptr + row)) * rstd, 0.0)
    wdy = w * dy
    along = tl.sum(hat * wdy, axis=0) / n
    across = tl.sum(wdy, axis=0) / n
    tl.store(dx_ptr + row * n + at, (wdy - hat * along - across) * rstd, mask=inside)
    group = row % GROUPS
    lock_ptr = locks_ptr + group
    count_ptr = locks_ptr + GROUPS + group
    part = dy * hat
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    if tl.load(count_ptr) == 0:
        tl.atomic_xchg(count_ptr, 1)
    else:
        part += tl.load(dw_ptr + group * n + at, mask=inside, other=0.0)
    tl.store(dw_ptr + group * n + at, part, mask=inside)
    tl.debug_barrier()
    tl.atomic_xchg(lock_ptr, 0)


@triton.jit
def column_sums(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    """Each program adds a row to the sums, atomically."""
    at = tl.arange(0, BLOCK)
    inside = at < columns
    x = tl.load(x_ptr + tl.program_id(0) * columns + at, mask=inside, other=0.0)
    tl.atomic_add(out_ptr + at, x, mask=inside)
