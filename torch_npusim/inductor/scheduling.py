# SPDX-License-Identifier: BSD-3-Clause
"""Inductor's C++ kernels as commands of npusim.

Loops are written as for the CPU; what differs is how a kernel is defined and called.
"""

from typing import Any

import torch
from torch._inductor import config, metrics
from torch._inductor.codegen import cpp
from torch._inductor.codegen.common import IndentedBuffer  # type: ignore[attr-defined]
from torch._inductor.utils import Placeholder
from torch._inductor.virtualized import V

from torch_npusim.inductor import account, kernel_source

_HOST = torch.device("cpu")


class NpusimScheduling(cpp.CppScheduling):
    """Turns nodes of a graph on one npusim device into kernels and calls of them."""

    def codegen_node(self, node: Any) -> None:
        """Adds nodes to the kernel in the making."""
        # Inductor asks the current device how to write loops, and takes those that it does not
        # know for Triton's (get_current_backend()).
        counted = metrics.generated_kernel_count
        with V.graph.set_current_device(_HOST):
            super().codegen_node(node)
        # As on other devices: what is fused is one, however many loops it takes.
        metrics.generated_kernel_count = counted + 1

    def codegen_template(self, *args: Any, **kwargs: Any) -> None:
        """Raises NotImplementedError: the C++ templates are the CPU's own."""
        raise NotImplementedError("C++ templates of Inductor on npusim")

    def define_kernel(self, src_code: str, nodes: Any, kernel_args: Any = None) -> str:
        """Defines a kernel that makes one command of `src_code`; returns its name."""
        args = self.kernel_group.args if kernel_args is None else kernel_args
        nodes = list(nodes)
        done = account.account(args, nodes)
        symbols = {
            symbol
            for expression in (
                done.bytes,
                done.flops,
                *(e for a in done.accesses for e in (a.offset, *a.sizes, *a.strides)),
            )
            for symbol in V.graph.sizevars.simplify(expression).free_symbols
        }
        of_loops, _, _ = args.cpp_argdefs()  # the account may need sizes that they do not
        sizes = {symbol: args.size(symbol) for symbol in sorted(symbols, key=str)}
        definitions, _, types = args.cpp_argdefs()
        source = kernel_source.wrapped(
            src_code,
            of_loops,
            definitions,
            [pointer for pointer, _, _ in account.pointers(args)],
            done,
            sizes,
        )
        wrapper: Any = V.graph.wrapper_code
        if source in wrapper.src_to_kernel:
            known: str = wrapper.src_to_kernel[source]
            return known
        fused = (
            cpp.get_fused_kernel_name(  # type: ignore[attr-defined]
                nodes, config.cpp.descriptive_names
            )
            if config.cpp.descriptive_names
            else ""
        )
        name = "_".join(part for part in ("npusim", fused, wrapper.next_kernel_suffix()) if part)
        wrapper.src_to_kernel[source] = name
        code = IndentedBuffer()
        code.writeline(f"async_compile.cpp_pybinding({[*types, 'uintptr_t']!r}, r'''")
        code.splice(source.replace(str(Placeholder.KERNEL_NAME), name), strip=True)
        code.writeline("''')")
        wrapper.define_kernel(name, code.getvalue(), gpu=False)
        wrapper.describe_kernel(name, operators_of(nodes), done, is_tuned(nodes))
        return name


def is_tuned(nodes: list[Any]) -> bool:
    """Whether Triton's kernel would have several configurations: pointwise, of over 64 elements.

    Up to there both have the same block and one warp (pointwise() in torch's triton_heuristics.py).
    """
    if any(node.is_reduction() for node in nodes):
        return False
    results = [leaf.node for node in nodes for leaf in node.get_nodes() if leaf.node is not None]
    return any(V.graph.sizevars.optimization_hint(one.get_numel()) > 64 for one in results)


def operators_of(nodes: list[Any]) -> tuple[str, ...]:
    """The operators of torch that nodes come from, by name, in the order of the graph."""
    origins = {
        origin
        for node in nodes
        for leaf in node.get_nodes()
        if leaf.node is not None
        for origin in leaf.node.get_origins()
        if origin.op == "call_function"
    }
    ordered = [node for node in V.graph.graph.nodes if node in origins]
    names = (str(node.meta.get("original_aten") or node.target) for node in ordered)
    return tuple(dict.fromkeys(names))
