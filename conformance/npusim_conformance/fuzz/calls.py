# SPDX-License-Identifier: BSD-3-Clause
"""Calls of one overload as the fuzzer makes them: plain values, written down as plain PyTorch.

A call is what is printed: children execute the very text. `device` in it is the device under test.
"""

import keyword
import math
from dataclasses import dataclass, replace
from typing import Any

INTEGERS = ("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float32", "float64", "float16", "bfloat16")
COMPLEX = ("complex64", "complex128", "complex32")
EXOTIC = ("float8_e4m3fn", "float8_e5m2")
DTYPES = (*FLOATS, *INTEGERS, "bool", *COMPLEX, *EXOTIC)
QUANTIZED = ("qint8", "quint8", "qint32")
SPARSE = ("sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr")

# Made by torch.randn in another dtype, since it has none of these.
_WIDER = {"complex32": "complex64", "float8_e4m3fn": "float32", "float8_e5m2": "float32"}


@dataclass(frozen=True)
class Word:
    """An expression of its own, as torch.float32."""

    text: str


@dataclass(frozen=True)
class TensorSpec:
    """How to make a tensor. Equal specs with the same `name` are one tensor.

    `values` are literals in the given shape; without them integers are drawn from [low, high).
    `strides`: the geometry over a flat storage of `storage` elements.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    values: str = ""
    low: int = 0
    high: int = 3
    place: str = "device"  # "cpu" and "meta": there, whatever is under test
    layout: str = ""
    expanded: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None
    offset: int = 0
    storage: int = 0
    bit: str = ""  # "conj" or "neg"
    requires_grad: bool = False
    name: str = ""

    @property
    def dim(self) -> int:
        """Number of dimensions before it is expanded."""
        return len(self.shape)

    def expression(self) -> str:
        """The tensor in plain PyTorch."""
        text = self._filled(self.shape if self.strides is None else (self.storage,))
        if self.dtype in QUANTIZED:
            text = f"torch.quantize_per_tensor({text}, 0.1, 2, torch.{self.dtype})"
        if self.layout == "sparse_bsr":
            text += f".to_sparse_bsr({(1,) * 2})"
        elif self.layout:
            text += {
                "sparse_coo": ".to_sparse()",
                "sparse_csr": ".to_sparse_csr()",
                "sparse_csc": ".to_sparse_csc()",
                "uncoalesced": ".to_sparse().mul(2)._coalesced_(False)",
            }[self.layout]
        if self.place == "device":
            text += ".to(device)"
        elif self.place == "meta":
            text += '.to("meta")'
        if self.strides is not None:
            text += f".as_strided({self.shape}, {self.strides}, {self.offset})"
        if self.expanded is not None:
            text += f".expand({self.expanded})"
        if self.bit == "conj":
            text += ".conj()"
        elif self.bit == "neg":
            text = f"torch._neg_view({text})"
        return text + (".requires_grad_()" if self.requires_grad else "")

    def _filled(self, shape: tuple[int, ...]) -> str:
        dtype = "float32" if self.dtype in QUANTIZED else self.dtype
        if self.values and self.strides is None:
            return f"torch.tensor({self.values}, dtype=torch.{dtype}).reshape({shape})"
        if dtype in INTEGERS or dtype == "bool":
            high = max(self.low + 1, self.high) if dtype != "bool" else 2
            low = self.low if dtype != "bool" else 0
            return f"torch.randint({low}, {high}, {shape}).to(torch.{dtype})"
        wide = _WIDER.get(dtype, dtype)
        made = f"torch.randn({shape}, dtype=torch.{wide})"
        return made if wide == dtype else f"{made}.to(torch.{dtype})"


@dataclass(frozen=True)
class Call:
    """A call of an overload: one value for each argument of its schema that is given."""

    overload: str  # as "add.Tensor"
    values: tuple[tuple[str, bool, Any], ...]  # name, whether by keyword only, value

    def lines(self, seed: int) -> list[str]:
        """The call in plain PyTorch, which finds `torch` and `device`."""
        shared: dict[TensorSpec, str] = {}
        uses: dict[TensorSpec, int] = {}
        for _, _, value in self.values:
            for spec in specs_in(value):
                uses[spec] = uses.get(spec, 0) + 1
        lines = [f"torch.manual_seed({seed})"]
        for spec, count in uses.items():
            if count > 1 and spec.name:
                shared[spec] = spec.name
                lines.append(f"{spec.name} = {spec.expression()}")
        words = []
        for name, by_keyword, value in self.values:
            text = expression(value, shared)
            words.append(f"{name}={text}" if by_keyword else text)
        packet, _, name = self.overload.partition(".")
        function = f"torch.ops.aten.{packet}.{name}"
        if keyword.iskeyword(name):  # random_.from
            function = f'getattr(torch.ops.aten.{packet}, "{name}")'
        lines.append(f"result = {function}({', '.join(words)})")
        return lines

    def with_value(self, index: int, value: Any) -> "Call":
        """The same call with another value for one argument."""
        name, by_keyword, _ = self.values[index]
        changed = (*self.values[:index], (name, by_keyword, value), *self.values[index + 1 :])
        return replace(self, values=changed)


def specs_in(value: Any) -> list[TensorSpec]:
    """The tensors in one argument."""
    if isinstance(value, TensorSpec):
        return [value]
    if isinstance(value, list):
        return [spec for item in value for spec in specs_in(item)]
    return []


def expression(value: Any, shared: dict[TensorSpec, str]) -> str:
    """One argument in plain PyTorch."""
    if isinstance(value, TensorSpec):
        return shared.get(value) or value.expression()
    if isinstance(value, Word):
        return value.text
    if isinstance(value, list):
        return f"[{', '.join(expression(item, shared) for item in value)}]"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, complex):
        return f"complex({value.real!r}, {value.imag!r})"
    return repr(value)
