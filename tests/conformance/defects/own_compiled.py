# SPDX-License-Identifier: BSD-3-Clause
"""Defects of compiled code: what is predicted, what is traced, and what Inductor generates."""

import re
from typing import Any

import torch
from torch import Tensor

from .planting import Stand, function, grid, interface, kernel


def compiled(program: Any, **options: Any) -> Any:
    """torch.compile() that takes nothing from a cache of graphs."""
    import torch._functorch.config
    import torch._inductor.config

    torch._inductor.config.fx_graph_cache = False
    torch._functorch.config.enable_autograd_cache = False
    return torch.compile(program, **options)


def _graphs() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


# --- predictions and traces


def _stride_of_gradient(device: str) -> tuple[int, ...]:
    x = grid(device).T.requires_grad_()
    (gradient,) = torch.autograd.grad(x.tanh(), x, torch.ones_like(x))
    return gradient.stride()


@function("tanh_backward", touches="tanh", shows=_stride_of_gradient)
def gradients_lie_in_rows(own: Stand, gradient: Tensor, result: Tensor):
    """The gradient of a transposed tensor is contiguous."""
    return own(gradient, result).contiguous()


def _column_written(device: str) -> Tensor:
    def program(x):
        y = x + 1
        y[:, 0].mul_(2)
        return y

    return compiled(program, backend="aot_eager")(grid(device))


@kernel("select_scatter", touches="contract:compile", shows=_column_written)
def scattered_writes_are_lost(own: Stand, x: Tensor, *rest):
    """select_scatter(), which only traced programs call, returns its input as it was."""
    return own(x, *rest).copy_(x)


def _graphs_of_two_sizes(device: str) -> int:
    program = compiled(torch.nn.functional.gelu, backend="aot_eager", dynamic=True)
    for rows in (4, 5):
        program(grid(device, rows))
    return _graphs()


@interface(touches="contract:compile", shows=_graphs_of_two_sizes)
def sizes_become_constants() -> None:
    """The gelu() of fake tensors asks for sizes as numbers: a graph for each size."""
    from torch._decomp import decomposition_table

    right = decomposition_table[torch.ops.aten.gelu.default]

    def predicted(x, **options):
        if x.device.type == "npusim":
            x = x.reshape([int(size) for size in x.shape])
        return right(x, **options)

    decomposition_table[torch.ops.aten.gelu.default] = predicted


def _traced_nonzero(device: str) -> Tensor:
    import torch._dynamo.config

    torch._dynamo.config.capture_dynamic_output_shape_ops = True
    return compiled(torch.nonzero, backend="aot_eager", fullgraph=True)(grid(device))


@interface(touches="contract:compile", shows=_traced_nonzero)
def sizes_of_results_must_be_known() -> None:
    """nonzero() is predicted by an error where the number of elements may stay open."""
    from torch._subclasses.fake_impls import op_implementations_dict
    from torch._subclasses.fake_tensor import DynamicOutputShapeException

    def predicted(mode, func, *arguments, **options):
        raise DynamicOutputShapeException(func)

    op_implementations_dict[torch.ops.aten.nonzero.default] = predicted


# --- what Inductor generates


def _sources(change: Any) -> None:
    """change(source) stands in for the source of each kernel."""
    from torch_npusim.inductor import kernel_source

    right = kernel_source.wrapped
    kernel_source.wrapped = lambda *arguments: change(right(*arguments))


def _fused(device: str) -> Tensor:
    return compiled(lambda x: x * 2 + 1)(torch.arange(37.0).to(device))


@interface(touches="contract:inductor", shows=_fused)
def fused_kernels_leave_out_the_rest() -> None:
    """Elements beyond the last whole vector are not computed."""
    _sources(lambda text: text.replace("if(C10_UNLIKELY(", "if(false && (").replace("else ", ""))


def _sum_of_sizes(device: str) -> list[Tensor]:
    program = compiled(lambda x: x * 2 + 1, dynamic=True)
    return [program(torch.arange(size).float().to(device)) for size in (18, 37)]


@interface(touches="contract:inductor", shows=_sum_of_sizes)
def fused_kernels_remember_the_first_size() -> None:
    """A kernel for all sizes computes no more than in its first call."""

    def change(text: str) -> str:
        head, launch, rest = text.rpartition("  npusim_on.launch(")
        sizes = sorted(set(re.findall(r"const int64_t (ks\d+)", head)))
        lines = "".join(f"  static const int64_t first_{size} = {size};\n" for size in sizes)
        for size in sizes:
            call = f"std::min<int64_t>({size}, first_{size})"
            rest = re.sub(rf"(npusim_loops\(.*)\b{size}\b(?=[,)])", rf"\1{call}", rest)
        return head + lines + launch + rest

    _sources(change)


def _kernels_of_two_sizes(device: str) -> int:
    _sum_of_sizes(device)
    return _graphs()


@interface(touches="contract:inductor", shows=_kernels_of_two_sizes)
def fused_kernels_are_made_for_each_size() -> None:
    """The code generator asks for sizes as numbers, so that each size is compiled anew."""
    from torch._inductor.virtualized import V

    from torch_npusim.inductor.scheduling import NpusimScheduling

    right = NpusimScheduling.define_kernel

    def define_kernel(self, source, nodes, *rest):
        for node in nodes:
            V.graph.sizevars.guard_int_seq(node.node.get_size())
        return right(self, source, nodes, *rest)

    NpusimScheduling.define_kernel = define_kernel


def _strides_of_transposed(device: str) -> tuple[int, ...]:
    return compiled(lambda x: x * 2)(grid(device).T).stride()


@interface(touches="contract:inductor", shows=_strides_of_transposed)
def buffers_lie_in_rows() -> None:
    """Generated code allocates contiguous buffers, whatever their strides are to be."""
    from torch_npusim.inductor.wrapper import _OnNpusim

    right = _OnNpusim.make_allocation

    def make_allocation(self, name, device, dtype, shape, stride, *rest):
        rows = [1]
        for size in reversed(shape[1:]):
            rows.insert(0, rows[0] * size)
        return right(self, name, device, dtype, shape, rows[: len(shape)], *rest)

    _OnNpusim.make_allocation = make_allocation


def _maximum_of_nan(device: str) -> Tensor:
    x = torch.tensor([float("nan")] * 40).to(device)
    return compiled(torch.maximum)(x, torch.ones_like(x)).isnan()


@interface(touches="contract:inductor", shows=_maximum_of_nan)
def fused_kernels_drop_nan() -> None:
    """In generated code the larger of nan and a number is the number."""
    larger = """
template <class V> static V larger(V x, V y) {
  return V::blendv(V::blendv(at::vec::maximum(x, y), x, y.isnan()), y, x.isnan());
}
"""

    def change(text: str) -> str:
        text = text.replace("at::vec::maximum(", "larger(").replace("max_propagate_nan(", "fmax(")
        return re.sub(r"static void\s+npusim_loops", lambda found: larger + found.group(), text)

    _sources(change)


def _added_in_place(device: str) -> Tensor:
    x = grid(device)
    compiled(lambda x: x.add_(1).sum())(x)
    return x


@interface(touches="contract:inductor", shows=_added_in_place)
def arguments_are_not_written() -> None:
    """Kernels of generated code get a copy of an argument that they are to change."""
    from torch._inductor.virtualized import V

    from torch_npusim.inductor.wrapper import _OnNpusim

    right = _OnNpusim._generate_kernel_call_helper

    def helper(self, name, arguments, **options):
        changed = V.graph.mutated_inputs
        arguments = [f"{one}.clone()" if one in changed else one for one in arguments]
        return right(self, name, arguments, **options)

    _OnNpusim._generate_kernel_call_helper = helper


def _dropped_twice(device: str) -> bool:
    program = compiled(lambda x: torch.nn.functional.dropout(x, 0.5))
    one, other = (program(torch.ones(64).to(device)).cpu() for _ in range(2))
    return torch.equal(one, other)


@kernel("randint.low_out", touches="contract:inductor", shows=_dropped_twice)
def seeds_of_kernels_repeat(own: Stand, low: int, high: int, size, *, out: Tensor):
    """The seed that generated code draws for its random numbers is always the same."""
    own(low, high, size, out=out)
    return out.fill_(5) if low == -(2**63) else out


def _statistics(device: str) -> Tensor:
    norm = torch.nn.BatchNorm1d(3).to(device)
    compiled(norm)(grid(device))
    return norm.running_mean


@interface(touches="contract:inductor", shows=_statistics)
def running_statistics_stay() -> None:
    """In generated code 0-d and 1-d arguments that are to change stay as they are."""
    from torch._inductor.virtualized import V

    from torch_npusim.inductor.wrapper import _OnNpusim

    right = _OnNpusim._generate_kernel_call_helper

    def helper(self, name, arguments, **options):
        graph = V.graph
        small = {one for one in graph.mutated_inputs if len(graph.graph_inputs[one].get_size()) < 2}
        arguments = [f"{one}.clone()" if one in small else one for one in arguments]
        return right(self, name, arguments, **options)

    _OnNpusim._generate_kernel_call_helper = helper


def _current_after(device: str) -> int:
    compiled(lambda x: x * 2)(grid(f"{device}:1"))
    return torch.npusim.current_device()


@interface(touches="contract:inductor", shows=_current_after)
def generated_code_leaves_its_device_current() -> None:
    """Generated code makes the device of its arguments current, and does not go back."""
    from torch_npusim.inductor.wrapper import _OnNpusim

    right = _OnNpusim.make_allocation

    def make_allocation(self, name, device, *rest):
        allocated = right(self, name, device, *rest)
        return f"torch.npusim.set_device({device.index}); {allocated}"

    _OnNpusim.make_allocation = make_allocation
