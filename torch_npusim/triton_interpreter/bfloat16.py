# SPDX-License-Identifier: BSD-3-Clause
"""bfloat16 in Triton's interpreter, which keeps it as uint16 and computes with these numbers.

Here operands become float32, and results are rounded to nearest even, as a GPU does. The types of
8 bits are kept so too; a GPU does not compute in them, and arithmetic with them is refused.
"""

from collections.abc import Callable
from typing import Any


def widen(bits: Any) -> Any:
    """float32 of bfloat16."""
    import numpy

    return (bits.astype(numpy.uint32) << numpy.uint32(16)).view(numpy.float32)


def narrow(values: Any) -> Any:
    """The nearest bfloat16 of float32, the even one of two."""
    import numpy

    bits = numpy.ascontiguousarray(values, dtype=numpy.float32).view(numpy.uint32)
    odd = (bits >> numpy.uint32(16)) & numpy.uint32(1)
    rounded = (bits + numpy.uint32(0x7FFF) + odd) >> numpy.uint32(16)
    return numpy.where(numpy.isnan(values), 0x7FC0, rounded).astype(numpy.uint16)


class Bfloat16:
    """Replacements for methods of the interpreter's builder.

    Args:
        interpreter: triton.runtime.interpreter.
    """

    def __init__(self, interpreter: Any) -> None:
        self._tl, self._handle = interpreter.tl, interpreter.TensorHandle

    def _is_kept(self, value: Any) -> bool:
        """Whether a value is a handle of a type that NumPy does not have."""
        if not isinstance(value, self._handle):
            return False
        kind = value.dtype.scalar
        return bool(
            kind == self._tl.bfloat16 or (kind.is_floating() and kind.primitive_bitwidth == 8)
        )

    def _widened(self, value: Any) -> Any:
        if not self._is_kept(value):
            return value
        if value.dtype.scalar != self._tl.bfloat16:
            raise NotImplementedError(
                f"arithmetic in {value.dtype.scalar}: no GPU has it, and Triton's interpreter "
                "computes with the bits; cast to float16 or float32 first"
            )
        return self._handle(widen(value.data), self._tl.float32)

    def constant(self, value: float) -> Any:
        """get_bf16(), which the builder lacks."""
        import numpy

        return self._handle(narrow(numpy.array([value], numpy.float32)), self._tl.bfloat16)

    def arithmetic(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """A method whose operands and result are of one type."""

        def computed(*operands: Any) -> Any:
            if not any(map(self._is_kept, operands)):
                return method(*operands)
            result = method(*map(self._widened, operands))
            if result.data.dtype.name == "float32":
                return self._handle(narrow(result.data), self._tl.bfloat16)
            return result  # of a comparison

        return computed

    def select(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """numpy.where takes bits as they are; all else of three operands computes."""
        computed = self.arithmetic(method)
        return lambda a, b, c, op: (method if op.__name__ == "where" else computed)(a, b, c, op)

    def dot(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """create_dot(), which knows how to widen types of 8 bits."""

        def product(a: Any, b: Any, d: Any, *rest: Any) -> Any:
            small = self._tl.bfloat16
            a, b, wide = (self._widened(x) if x.dtype.scalar == small else x for x in (a, b, d))
            result = method(a, b, wide, *rest)
            if d.dtype.scalar != small:
                return result
            return self._handle(narrow(result.data), small)

        return product

    def cast(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """cast_impl() and create_fp_to_fp()."""

        def converted(source: Any, to: Any, *rounding: Any) -> Any:
            small, wide = self._tl.bfloat16, self._tl.float32
            is_small, becomes_small = source.dtype.scalar == small, to.scalar == small
            if is_small == becomes_small:
                return source if is_small else method(source, to, *rounding)
            if is_small:
                source = self._handle(widen(source.data), wide)
                return source if to.scalar == wide else method(source, to, *rounding)
            if rounding and "RTZ" in str(rounding[0]):
                return method(source, to, *rounding)  # cuts bits off, which it does right
            if source.dtype.scalar != wide:
                source = method(source, wide, *rounding)
            return self._handle(narrow(source.data), small)

        return converted

    def add_atomically(self, pointers: Any, values: Any, mask: Any) -> Any:
        """atomic_add() of bfloat16, lane by lane; the addresses are the host's."""
        import ctypes

        import numpy

        before = numpy.zeros(pointers.data.shape, dtype=numpy.uint16)
        lanes = numpy.broadcast_to(mask.data, before.shape)
        added = numpy.broadcast_to(values.data, before.shape)
        for lane in zip(*numpy.nonzero(lanes), strict=True):
            place = ctypes.c_uint16.from_address(int(pointers.data[lane]))
            before[lane] = place.value
            summands = numpy.array([place.value, added[lane]], numpy.uint16)
            place.value = int(narrow(widen(summands).sum(keepdims=True))[0])
        return self._handle(before, self._tl.bfloat16)

    def reduction(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """A reduction or scan that NumPy does: in float32, rounded at its end."""

        def tensor(value: Any, data: Any, kind: Any) -> Any:
            shape = list(value.type.shape) if value.type.is_block() else None
            return self._tl.core.tensor(
                self._handle(data, kind), self._tl.block_type(kind, shape) if shape else kind
            )

        def narrowed(value: Any) -> Any:
            if value.handle.dtype.scalar != self._tl.float32:
                return value  # an index
            return tensor(value, narrow(value.handle.data), self._tl.bfloat16)

        def computed(this: Any, value: Any, *rest: Any, **options: Any) -> Any:
            first = value[0] if isinstance(value, tuple) else value
            if not self._is_kept(first.handle):
                return method(this, value, *rest, **options)
            wide = tensor(first, self._widened(first.handle).data, self._tl.float32)
            found = method(this, wide, *rest, **options)
            if isinstance(found, (tuple, list)):
                return type(found)(map(narrowed, found))
            return narrowed(found)

        return computed
