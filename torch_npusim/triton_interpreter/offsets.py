# SPDX-License-Identifier: BSD-3-Clause
"""Follows offsets that do not fit into 32 bits: a handle then has the exact numbers beside it.

`exact` is an array of int64 that differs from `data` where int32 overflowed, and `exact_line` the
line on which it did first. A pointer that was made from such an offset has `astray`: its lanes.
"""

from collections.abc import Callable
from typing import Any

from torch_npusim.triton_interpreter.launch import current_line

_CAN_OVERFLOW = frozenset({"add", "subtract", "multiply", "left_shift"})
#: Methods that move lanes and compute nothing; the handle is their first argument, or all are.
MOVES = (
    "create_reshape create_trans create_expand_dims create_broadcast create_unsplat cast_impl"
).split()


def _exact(handle: Any, numpy: Any) -> Any:
    known = getattr(handle, "exact", None)
    return handle.data.astype(numpy.int64) if known is None else known


def _note(result: Any, exact: Any, operands: tuple[Any, ...]) -> Any:
    if exact.shape == result.data.shape and (exact != result.data).any():
        lines = [x.exact_line for x in operands if hasattr(x, "exact_line")]
        result.exact, result.exact_line = exact, lines[0] if lines else current_line()
    return result


def binary(method: Callable[..., Any], numpy: Any) -> Callable[..., Any]:
    """binary_op() of the builder."""

    def followed(a: Any, b: Any, op: Any) -> Any:
        result = method(a, b, op)
        known = hasattr(a, "exact") or hasattr(b, "exact")
        if result.data.dtype.kind != "i" or not (
            known or (op.__name__ in _CAN_OVERFLOW and result.data.dtype.itemsize == 4)
        ):
            return result
        return _note(result, op(_exact(a, numpy), _exact(b, numpy)), (a, b))

    return followed


def select(method: Callable[..., Any], numpy: Any) -> Callable[..., Any]:
    """ternary_op() of the builder."""

    def followed(a: Any, b: Any, c: Any, op: Any) -> Any:
        result = method(a, b, c, op)
        if not any(hasattr(x, "exact") for x in (b, c)):
            return result
        return _note(result, op(a.data, _exact(b, numpy), _exact(c, numpy)), (b, c))

    return followed


def move(name: str, method: Callable[..., Any], handle: Any, int64: Any) -> Callable[..., Any]:
    """A method of MOVES: what it does with `data`, it does with what stands beside it."""

    def followed(value: Any, *rest: Any) -> Any:
        result = method(value, *rest)
        if hasattr(value, "exact") and result.data.dtype.kind == "i":
            is_cast = name == "cast_impl"
            exact = value.exact if is_cast else method(handle(value.exact, int64), *rest).data
            _note(result, exact, (value,))
        if hasattr(value, "astray"):
            result.astray = method(handle(value.astray, int64), *rest).data
            result.exact_line = value.exact_line
        return result

    return followed


def splat(method: Callable[..., Any], numpy: Any) -> Callable[..., Any]:
    """create_splat(type, scalar)."""

    def followed(kind: Any, scalar: Any) -> Any:
        result = method(kind, scalar)
        for name in ("exact", "astray"):
            if hasattr(scalar, name):
                lanes = numpy.full(result.data.shape, getattr(scalar, name).reshape(-1)[0])
                setattr(result, name, lanes)
                result.exact_line = scalar.exact_line
        return result

    return followed


def pointer(method: Callable[..., Any], numpy: Any) -> Callable[..., Any]:
    """create_addptr(pointer, offset)."""

    def followed(base: Any, offset: Any) -> Any:
        result = method(base, offset)
        astray = numpy.zeros(result.data.shape, dtype=bool)
        for operand, lanes in (
            (base, getattr(base, "astray", None)),
            (offset, offset.exact != offset.data if hasattr(offset, "exact") else None),
        ):
            if lanes is not None and lanes.any():
                astray = astray | lanes
                result.astray, result.exact_line = astray, operand.exact_line
        return result

    return followed
