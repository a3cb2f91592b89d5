# SPDX-License-Identifier: BSD-3-Clause
"""Reads, writes and operations of a fused kernel, as expressions of its sizes.

By the rule of every other command (rule C1): what comes from memory counts once, what goes there
once, what is changed in place twice. What one part of the kernel makes for another does not leave
it. The operations are those of the loop bodies.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch
from torch._inductor.codegen.common import RemovedArg
from torch._inductor.dependencies import MemoryDep, WeakDep
from torch._inductor.utils import get_dtype_size, sympy_product
from torch._inductor.virtualized import V

# What a loop body calls that is no arithmetic.
_NO_ARITHMETIC = frozenset(
    "load store get_index constant index_expr to_dtype to_dtype_bitcast load_seed store_reduction "
    "set_indirect check_bounds indirect_indexing masked_subblock output placeholder".split()
)

# Stacks and compilers have limits.
_MOST_ACCESSES = 64


@dataclass(frozen=True)
class Access:
    """A kernel's accesses to one buffer; sizes and strides in elements.

    Attributes:
        pointer: Name of the pointer argument.
        dtype: Of the elements.
        written: Whether it is written.
        offset: Of the first element.
        sizes: Of the elements that are touched.
        strides: Likewise; a stride of 0 repeats elements.
    """

    pointer: str
    dtype: torch.dtype
    written: bool
    offset: sympy.Expr
    sizes: tuple[sympy.Expr, ...]
    strides: tuple[sympy.Expr, ...]

    def elements(self) -> sympy.Expr:
        """How many different elements these are."""
        return sympy_product(
            size for size, stride in zip(self.sizes, self.strides, strict=True) if stride != 0
        )


@dataclass(frozen=True)
class Account:
    """The account of a kernel.

    Attributes:
        accesses: Its accesses; of too many to be told, their buffers, each as a whole.
        bytes: Read and written.
        flops: Its operations.
        dtype: The dtype whose arithmetic it does.
    """

    accesses: tuple[Access, ...]
    bytes: sympy.Expr
    flops: sympy.Expr
    dtype: torch.dtype


@dataclass(frozen=True)
class Pointer:
    """A pointer argument of a kernel.

    Attributes:
        name: In the kernel.
        buffer: Of the graph, whose tensor is passed.
        dtype: Of the elements.
        device: Where they are.
    """

    name: str
    buffer: str
    dtype: torch.dtype
    device: torch.device


def pointers(args: Any) -> Iterator[tuple[Pointer, frozenset[str], frozenset[str]]]:
    """The pointer arguments in the order of KernelArgs.cpp_argdefs().

    Yields:
        Each with the buffers that are read and the buffers that are written through it.
    """
    seen = set()
    for inplaced in args.inplace_buffers.values():
        if isinstance(inplaced, RemovedArg) or inplaced.inner_name in seen:
            continue
        seen.add(inplaced.inner_name)
        names = frozenset(inplaced.other_names)
        yield _pointer(inplaced.inner_name, inplaced.other_names[-1]), names, names
    for outer, inner in args.input_buffers.items():
        if outer not in args.inplace_buffers:
            yield _pointer(inner, outer), frozenset((outer,)), frozenset()
    for outer, inner in args.output_buffers.items():
        if outer not in args.inplace_buffers and not isinstance(inner, RemovedArg):
            yield _pointer(inner, outer), frozenset(), frozenset((outer,))


def _pointer(inner: str, outer: str) -> Pointer:
    constant = V.graph.constants.get(outer)
    device = V.graph.get_buffer(outer).get_device() if constant is None else constant.device
    return Pointer(inner, outer, V.graph.get_dtype(outer), device)  # type: ignore[arg-type]


def account(args: Any, nodes: Iterable[Any]) -> Account:
    """Returns the account of the kernel that does `nodes` with the arguments `args`."""
    leaves = [leaf for node in nodes for leaf in node.get_nodes()]
    real_names = V.graph.scheduler.mutation_real_name
    made = {dep.name for leaf in leaves for dep in leaf.read_writes.writes}
    accesses: list[Access] = []
    buffers: list[Access] = []
    nbytes: sympy.Expr = sympy.S.Zero
    dtype = None
    for pointer, read, written in pointers(args):
        whole = _whole(pointer)
        for is_write, names in ((False, read), (True, written)):
            found: dict[Access, None] = {}
            for leaf in leaves:
                deps = leaf.read_writes.writes if is_write else leaf.read_writes.reads
                for dep in deps:
                    if isinstance(dep, WeakDep) or (not is_write and dep.name in made):
                        continue
                    if dep.name in names or real_names.get(dep.name) in names:
                        found[_access(pointer, dep, is_write, whole)] = None
                        if is_write and getattr(dep, "mode", None) is not None:
                            found[_access(pointer, dep, False, whole)] = None  # atomic_add reads
            for is_written in (False, True):
                touched = [access for access in found if access.written is is_written]
                if touched:
                    buffers.append(replace(whole, written=is_written))
                    elements = sympy.Add(*(access.elements() for access in touched))
                    nbytes += _least(elements, whole.elements()) * get_dtype_size(pointer.dtype)
            accesses += found
        if written and (dtype is None or pointer.dtype.is_floating_point):
            dtype = pointer.dtype
    told = tuple(dict.fromkeys(accesses))
    if len(told) > _MOST_ACCESSES:
        told = tuple(dict.fromkeys(buffers))
    return Account(told, nbytes, _operations(leaves), dtype or torch.float32)


def _least(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
    return b if a == b else sympy.Min(a, b)


def _whole(pointer: Pointer) -> Access:
    """An access to all of a buffer, as its layout says."""
    constant = V.graph.constants.get(pointer.buffer)
    if constant is not None:
        sizes, strides = tuple(constant.size()), tuple(constant.stride())
    else:
        layout = V.graph.get_buffer(pointer.buffer).get_layout()
        sizes, strides = tuple(layout.size), tuple(layout.stride)
    sizes, strides = (tuple(map(sympy.sympify, values)) for values in (sizes, strides))
    return Access(pointer.name, pointer.dtype, False, sympy.S.Zero, sizes, strides)


def _access(pointer: Pointer, dep: Any, written: bool, whole: Access) -> Access:
    offset, sizes, strides = whole.offset, whole.sizes, whole.strides
    if isinstance(dep, MemoryDep) and not dep.is_indirect():
        # With fewest loops, so that the same elements are the same access.
        dep = dep.normalize()
        index = sympy.expand(dep.index)
        start = index.subs(dict.fromkeys(dep.var_names, 0))
        steps = tuple(index.coeff(var) for var in dep.var_names)
        walked = start + sum(step * var for step, var in zip(steps, dep.var_names, strict=True))
        if sympy.expand(index - walked) == 0:  # no modulo, no division
            offset, sizes, strides = start, tuple(map(sympy.sympify, dep.size)), steps
    return Access(pointer.name, pointer.dtype, written, offset, sizes, strides)


def _operations(leaves: Iterable[Any]) -> sympy.Expr:
    total: sympy.Expr = sympy.S.Zero
    for leaf in leaves:
        body = getattr(leaf, "_body", None)
        if body is None:
            continue
        blocks = [body.root_block, *body.subblocks.values()]
        count = sum(
            node.op == "call_method" and node.target not in _NO_ARITHMETIC
            for block in blocks
            for node in block.graph.nodes
        )
        total += max(count, 1) * sympy_product(body.var_ranges.values())
    return total
