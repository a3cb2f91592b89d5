# SPDX-License-Identifier: BSD-3-Clause
"""The C library's malloc and memmove, as baselines; glibc only.

By default glibc takes a block of 64 MiB from the kernel for each malloc() and gives it back at
free(), so each result is paid for with page faults. Tuned, it keeps freed memory.
"""

import ctypes

_LIBC = ctypes.CDLL(None)
_LIBC.memmove.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # <malloc.h>

memmove = _LIBC.memmove


def tuned_malloc() -> None:
    """Never mmap() a block and never give memory back, as MALLOC_MMAP_MAX_=0 does and its like."""
    _LIBC.mallopt(_M_MMAP_MAX, 0)
    _LIBC.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def default_malloc() -> None:
    """Large blocks come from mmap(), and free memory goes back to the system."""
    _LIBC.mallopt(_M_MMAP_MAX, 65536)
    _LIBC.mallopt(_M_TRIM_THRESHOLD, 128 * 1024)
    _LIBC.malloc_trim(0)
