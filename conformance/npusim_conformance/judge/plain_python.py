# SPDX-License-Identifier: BSD-3-Clause
"""Writes one call down as a script of torch and the backend only: what people put into an issue."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from npusim_conformance.inputs.variation import is_half_complex

LITERAL_ELEMENTS_MAX = 96  # a larger storage is filled with random numbers by seed


class Unwritable(Exception):
    """The call holds something that has no plain literal; the message names it."""


def script(
    function: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    device: torch.device,
    import_name: str,
    backward: bool = False,
    into: str = "",
) -> str:
    """The script, which calls `function` with copies of these tensors on the CPU and on `device`.

    Tensors keep strides, offsets and shared storages. Those that were on the CPU while others were
    on the device must be wrapped in HostTensor. With `into`, an expression of `result`, the call is
    made once more with such tensors as out=. Raises Unwritable.
    """
    writer = _Writer()
    call = f"{function}({writer.arguments(args, kwargs)})"
    lines = ["import torch"]
    if import_name:
        lines.append(f"import {import_name}")
    if writer.needs_math:
        lines.append("from math import inf, nan")
    lines += ["", "", "def run(device):"]
    if writer.is_random:
        lines.append("    torch.manual_seed(0)  # the values themselves do not matter")
    lines += [f"    {line}" for line in writer.lines]
    if backward:
        lines.append(f"    result = {call}")
        lines.append("    leaves = torch.utils._pytree.tree_leaves(result)")
        lines.append(
            "    sum(leaf.abs().sum() for leaf in leaves if leaf.requires_grad).backward()"
        )
        lines.append(f"    return [{', '.join(f'{name}.grad' for name in writer.leaves)}]")
    elif into:
        lines.append(f"    result = {call}")
        lines.append(f"    out = torch.utils._pytree.tree_map(lambda result: {into}, result)")
        lines.append(f"    return {call.removesuffix(')')}, out=out)")
    else:
        lines.append(f"    return {call}")
    # Printing computes, and the device may not be able to: its results are printed from the CPU.
    lines += [
        "",
        "",
        "on_device = torch.utils._pytree.tree_map_only(torch.Tensor, torch.Tensor.cpu, "
        f'run("{device}"))',
        'print("cpu:", run("cpu"))',
        f'print("{device}:", on_device)',
    ]
    return "\n".join(lines)


class HostTensor:
    """Marks a tensor that stays on the CPU on both sides."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def operator_expression(operator: Any) -> str:
    """How to call an entry of torch's database, as "torch.linalg.svd". Raises Unwritable."""
    name: str = operator.name
    for prefix, root in (("torch.", torch), ("torch.Tensor.", torch.Tensor)):
        found: Any = root
        for part in name.split("."):
            found = getattr(found, part, None)
        if callable(found):
            return prefix + name
    raise Unwritable(f"{name} is a function of torch's own tests")


class _Writer:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.leaves: list[str] = []
        self.needs_math = False
        self.is_random = False
        self._bases: dict[int, str] = {}
        self._tensors: dict[int, str] = {}

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        words = [self.value(arg) for arg in args]
        words += [f"{key}={self.value(value)}" for key, value in kwargs.items()]
        return ", ".join(words)

    def value(self, value: Any) -> str:
        if isinstance(value, HostTensor):
            return self._tensor(value.tensor, moves=False)
        if isinstance(value, torch.Tensor):
            return self._tensor(value, moves=True)
        if isinstance(value, torch.device):
            return "device"
        if isinstance(value, torch.Size | tuple):
            inner = ", ".join(self.value(item) for item in value)
            return f"({inner},)" if len(value) == 1 else f"({inner})"
        if isinstance(value, list):
            return f"[{', '.join(self.value(item) for item in value)}]"
        if isinstance(value, dict):
            return f"{{{', '.join(f'{k!r}: {self.value(v)}' for k, v in value.items())}}}"
        plain = bool | int | str | torch.dtype | torch.layout | torch.memory_format | slice
        if isinstance(value, float | complex):
            return self._number(value)
        if value is None or value is Ellipsis or isinstance(value, plain):
            return repr(value)
        raise Unwritable(f"a {type(value).__name__} among the arguments")

    def _number(self, value: float | complex) -> str:
        finite = math.isfinite(value.real) and math.isfinite(value.imag)
        self.needs_math |= not finite
        return repr(value)

    def _tensor(self, tensor: torch.Tensor, moves: bool) -> str:
        if id(tensor) in self._tensors:
            return self._tensors[id(tensor)]
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
            raise Unwritable("a tensor that is sparse, quantized or nested")
        plain = tensor.detach()
        suffix = ""
        if plain.is_conj():
            plain, suffix = plain.conj(), ".conj()"
        elif plain.is_neg():
            plain, suffix = torch._neg_view(plain), "._neg_view()"
        name = f"x{len(self._tensors)}"
        self._tensors[id(tensor)] = name
        storage = plain.untyped_storage()
        elements = storage.nbytes() // plain.element_size()
        whole = elements == plain.numel() and plain.is_contiguous()
        key = storage._cdata
        move = ".to(device)" if moves else ""
        if whole and key not in self._bases:
            expression = self._values(plain, tuple(plain.shape)) + move
            self._bases[key] = f"{name}.view(-1)"
        else:
            if key not in self._bases:
                flat = torch.empty(0, dtype=plain.dtype).set_(storage, 0, (elements,), (1,))
                self._bases[key] = f"storage{len(self._bases)}"
                self.lines.append(f"{self._bases[key]} = {self._values(flat, (elements,))}{move}")
            shape, stride = tuple(plain.shape), tuple(plain.stride())
            offset = plain.storage_offset()
            expression = f"{self._bases[key]}.as_strided({shape}, {stride}, {offset})"
        if suffix == "._neg_view()":
            expression = f"torch._neg_view({expression})"
        else:
            expression += suffix
        if tensor.requires_grad:
            expression += ".detach().requires_grad_()"
            self.leaves.append(name)
        self.lines.append(f"{name} = {expression}")
        return name

    def _values(self, tensor: torch.Tensor, shape: tuple[int, ...]) -> str:
        if tensor.numel() > LITERAL_ELEMENTS_MAX:
            self.is_random = True
            return f'torch.testing.make_tensor({shape}, dtype={tensor.dtype}, device="cpu")'
        if tensor.numel() == 0:
            return f"torch.empty({shape}, dtype={tensor.dtype})"
        wide = tensor
        if is_half_complex(tensor.dtype):
            wide = tensor.to(torch.complex64)
        elif tensor.is_floating_point() and tensor.element_size() == 1:
            wide = tensor.to(torch.float32)
        values = wide.tolist()
        for value in pytree.tree_leaves(values):
            if isinstance(value, float | complex):
                self._number(value)
        return f"torch.tensor({values!r}, dtype={tensor.dtype})"


def described(write: Callable[[], str]) -> str:
    """The text of `write`, or nothing where the call cannot be written down."""
    try:
        return write()
    except Unwritable:
        return ""


def sample_script(
    sample: Any, device: torch.device, import_name: str, backward: bool = False, into: str = ""
) -> str:
    """The operator's call for one sample, or nothing where it cannot be written down."""
    return described(
        lambda: script(
            operator_expression(sample.operator),
            (sample.raw.input, *sample.raw.args),
            sample.raw.kwargs,
            device,
            import_name,
            backward,
            into,
        )
    )
