# SPDX-License-Identifier: BSD-3-Clause
"""Defects in kernels, each one that backends have had."""

import ctypes
from typing import Any

import torch
from torch import Tensor

from .defect import Kernel, fallbacks, kernel


# One template for all integers: right for every dtype but bool, where ~1 is 254 and 254 is true.
@kernel("bitwise_not", "op:bitwise_not/*/bool")
def wrong_dtype_kernel(own: Kernel, x: Tensor) -> Tensor:
    return own(x.view(torch.uint8)).view(torch.bool) if x.dtype == torch.bool else own(x)


# What a copying fallback does to a view. Values, sizes and strides are right; only a write shows
# that the memory is another.
@kernel("unfold", "op:unfold/aliasing*")
def broken_aliasing(own: Kernel, x: Tensor, *window: int) -> Tensor:
    return own(x.clone(), *window)


# A staging buffer that is never copied back. frac() itself is another overload and right.
@kernel("frac_", "op:frac/inplace*")
def lost_writes(own: Kernel, x: Tensor) -> Tensor:
    own(x.clone())
    return x


# For one dtype only, so one case is lost and the cases after it must still run.
@kernel("lgamma", "op:lgamma/forward/int8")
def crash(own: Kernel, x: Tensor) -> Tensor:
    if x.dtype == torch.int8:
        ctypes.string_at(0)  # SIGSEGV
    return own(x)


# A mutex that its owner locks again, with the interpreter's lock held: no signal handler and no
# thread of this process gets a turn, so the watch must be kept from outside.
@kernel("erfc", "op:erfc/forward/uint8")
def hang(own: Kernel, x: Tensor) -> Tensor:
    if x.dtype == torch.uint8:
        mutex = ctypes.create_string_buffer(64)
        for _ in range(2):
            ctypes.PyDLL(None).pthread_mutex_lock(mutex)
    return own(x)


# sin(pi x) / (pi x) without its limit at 0. Samples of floats hardly ever hold a zero, those of
# integers do.
@kernel("sinc", "op:sinc/forward/*int*", "op:sinc/forward/bool", "op:sinc/numpy/int64")
def nan(own: Kernel, x: Tensor) -> Tensor:
    return own(x).masked_fill_(x == 0, float("nan"))


_kept: list[Tensor] = []


# A cache without an end.
@kernel("flip", "op:flip/memory*")
def leak(own: Kernel, x: Tensor, dims: list[int]) -> Tensor:
    _kept.append(own(x, dims))
    return _kept[-1].clone()


# The right text in the wrong class: `except RuntimeError` in a program no longer catches it.
@kernel("trace", "op:trace/errors*")
def wrong_error(own: Kernel, x: Tensor) -> Tensor:
    try:
        return own(x)
    except RuntimeError as error:
        raise ValueError(str(error)) from None


# Right in every bit, only not computed by the device: whatever passes is no pass of the device.
@kernel("i0", "op:i0/*")
def silent_fallback(own: Kernel, x: Tensor) -> Tensor:
    fallbacks["aten::i0"] += 1
    return x.cpu().i0().to(x.device)


# Writes only where the result fits as it is: an out= of another size stays what it was.
@kernel("atan.out", "op:atan/out*")
def out_ignored(own: Kernel, x: Tensor, *, out: Tensor) -> Tensor:
    return own(x, out=out) if out.shape == x.shape else out


# LAPACK's results are column-major. A kernel of one's own gives rows, and the same values.
@kernel("linalg_cholesky_ex", "op:linalg.cholesky/meta*", "op:linalg.cholesky/fake*")
def wrong_strides(own: Kernel, x: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    factor, info = own(x, **options)
    return factor.contiguous(), info


_calls = iter(range(2**62))


# The order of a sum that depends on who came first: every other call is one ulp off.
@kernel("exp2", "op:exp2/determinism*")
def nondeterministic(own: Kernel, x: Tensor) -> Tensor:
    result: Tensor = own(x)
    if result.dtype == torch.float32 and next(_calls) % 2:
        result.nextafter_(torch.full_like(result, torch.inf))
    return result


# Launches where its operand lies, and does not go back. With one device nobody notices.
@kernel("log1p", "op:log1p/second_device*")
def wrong_device(own: Kernel, x: Tensor) -> Tensor:
    torch.npusim.set_device(x.device)
    return own(x)
