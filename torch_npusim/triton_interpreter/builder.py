# SPDX-License-Identifier: BSD-3-Clause
"""Actions of the interpreter's builder while a program runs on npusim."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch_npusim.triton_interpreter import offsets
from torch_npusim.triton_interpreter.bfloat16 import Bfloat16
from torch_npusim.triton_interpreter.launch import Access, Launch


@contextmanager
def at_device(interpreter: Any, launch: Launch) -> Iterator[None]:
    """Sends the interpreter's loads and stores to device memory while a program runs."""
    builder = interpreter.interpreter_builder
    numpy, handle = launch.numpy, interpreter.TensorHandle
    small = Bfloat16(interpreter)
    original = {
        name: getattr(builder, name)
        for name in (
            "create_masked_load create_masked_store create_atomic_rmw create_atomic_cas create_dot "
            "binary_op unary_op ternary_op create_fma cast_impl create_fp_to_fp create_splat "
            "create_addptr"
        ).split()
        + offsets.MOVES
    }

    def shown(kind: str, pointers: Any, mask: Any, values: Any = None) -> Any:
        """The mask of what may be touched."""
        size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        allowed = numpy.broadcast_to(numpy.asarray(mask, dtype=bool), pointers.data.shape)
        astray = getattr(pointers, "astray", None)
        if astray is not None and (astray & allowed).any():
            launch.overflowed(pointers.exact_line, kind)
            allowed = allowed & ~astray
        if values is not None:
            values = numpy.broadcast_to(values.data, pointers.data.shape)[allowed]
        access = Access(kind, launch.program, pointers.data[allowed], size, values)
        may = launch.access(access)
        if may is not None:
            allowed = allowed.copy()
            allowed[allowed] = may
        return allowed

    def at_home(pointers: Any) -> Any:
        return handle(launch.at_home(pointers.data), pointers.dtype)

    def load(pointers: Any, mask: Any, other: Any, *rest: Any) -> Any:
        allowed = shown("load", pointers, mask.data)
        if other is None and not numpy.all(mask.data):
            kind = interpreter._get_np_dtype(pointers.get_element_ty())
            zeros = numpy.zeros(pointers.data.shape, dtype=kind)
            undefined = numpy.where(mask.data, zeros, launch.undefined(zeros))
            other = handle(undefined, pointers.get_element_ty())
        permitted = handle(allowed, interpreter.tl.int1)
        return original["create_masked_load"](at_home(pointers), permitted, other, *rest)

    def store(pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        allowed = shown("store", pointers, mask.data, value)
        permitted = handle(allowed, interpreter.tl.int1)
        return original["create_masked_store"](at_home(pointers), value, permitted, *rest)

    def atomic(operation: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        allowed = shown("atomic", pointers, mask.data)
        permitted = handle(allowed, interpreter.tl.int1)
        if value.dtype.scalar == interpreter.tl.bfloat16:
            if "ADD" not in str(operation):
                raise NotImplementedError(f"{operation} of bfloat16: no GPU has it")
            return small.add_atomically(at_home(pointers), value, permitted)
        return original["create_atomic_rmw"](operation, at_home(pointers), value, permitted, *rest)

    def swap(pointers: Any, expected: Any, *rest: Any) -> Any:
        allowed = shown("swap", pointers, True)
        if not allowed.all():
            return handle(expected.data.copy(), expected.dtype.scalar)
        found = original["create_atomic_cas"](at_home(pointers), expected, *rest)
        if pointers.data.size == 1:
            launch.swapped(
                int(pointers.data.reshape(-1)[0]), bool((found.data == expected.data).all())
            )
        return found

    def dot(a: Any, b: Any, d: Any, *rest: Any) -> Any:
        launch.flops += 2.0 * math.prod(d.data.shape) * a.data.shape[-1]
        return small.dot(original["create_dot"])(a, b, d, *rest)

    def counted(method: Callable[..., Any]) -> Callable[..., Any]:
        def computed(first: Any, *rest: Any) -> Any:
            result = method(first, *rest)
            if first.dtype.scalar.is_floating():
                launch.flops += result.data.size
            return result

        return computed

    changed: dict[str, Any] = {
        "create_masked_load": load,
        "create_masked_store": store,
        "create_atomic_rmw": atomic,
        "create_atomic_cas": swap,
        "create_dot": dot,
        "binary_op": counted(small.arithmetic(original["binary_op"])),
        "unary_op": counted(small.arithmetic(original["unary_op"])),
        "ternary_op": counted(small.select(original["ternary_op"])),
        "create_fma": counted(small.arithmetic(original["create_fma"])),
        "get_bf16": small.constant,
        "cast_impl": small.cast(original["cast_impl"]),
        "create_fp_to_fp": small.cast(original["create_fp_to_fp"]),
    }
    if launch.exact_offsets:
        changed["binary_op"] = offsets.binary(changed["binary_op"], numpy)
        changed["ternary_op"] = offsets.select(changed["ternary_op"], numpy)
        for name in offsets.MOVES:
            method = changed.get(name, original[name])
            changed[name] = offsets.move(name, method, handle, interpreter.tl.int64)
        changed["create_splat"] = offsets.splat(original["create_splat"], numpy)
        changed["create_addptr"] = offsets.pointer(original["create_addptr"], numpy)
    for name, function in changed.items():
        setattr(builder, name, function)
    try:
        yield
    finally:
        for name in changed:
            delattr(builder, name)
