# SPDX-License-Identifier: BSD-3-Clause
"""torch.compile on the device without generated code: functionalization, gradients, sizes."""

from npusim_conformance.contracts import contract
from npusim_conformance.contracts.apart.compiling import compiles
from npusim_conformance.properties.base import Run


@contract(quick=False)
def functionalization_changes_nothing(run: Run) -> None:
    """A function that writes to views gives the same without mutation, traced and run."""
    compiles(
        run,
        """
from torch.fx.experimental.proxy_tensor import make_fx
x, weight = (one.detach() for one in inputs(4))
traced = make_fx(torch.func.functionalize(program), tracing_mode="fake")(x, weight)
written = [node for node in traced.graph.nodes if str(node.target).startswith("aten.mul_")]
assert not written, written
for name, one, other in zip(("values", "indices"), program(x, weight), traced(x, weight)):
    close(name, one, other)
""",
    )


@contract(quick=False)
def compiled_without_code_gives_the_same(run: Run) -> None:
    """torch.compile(backend="aot_eager"): values, indices and gradients are those of eager mode."""
    compiles(run, 'holds(torch.compile(program, backend="aot_eager"), 4)\n')


@contract(quick=False)
def one_graph_serves_all_sizes(run: Run) -> None:
    """A graph with dynamic shapes is right for other sizes, and is not made again for them."""
    script = 'serves(torch.compile(program, backend="aot_eager", dynamic=True), (4, 7, 33))\n'
    compiles(run, script)


@contract(quick=False)
def sizes_of_none_and_one_are_right(run: Run) -> None:
    """With dynamic shapes, no row and one row give what they give in eager mode."""
    compiles(
        run,
        """
function = torch.compile(program, backend="aot_eager", dynamic=True)
for rows in (4, 1, 0):
    holds(function, rows)
""",
    )


@contract(quick=False)
def sizes_may_depend_on_values(run: Run) -> None:
    """nonzero() and a mask are traced into one graph, which is right for any number of elements."""
    compiles(
        run,
        """
import torch._dynamo.config
torch._dynamo.config.capture_dynamic_output_shape_ops = True

def chosen(x):
    return x.nonzero() + 1, x[x > 0] * 2

function = torch.compile(chosen, backend="aot_eager", fullgraph=True)
for bound in (0.0, 0.5, 9.0):
    x = (inputs(7)[0].detach() - bound).relu()
    for name, one, other in zip(("places", "values"), chosen(x), function(x)):
        close(f"{name} of {int((x > 0).sum())} elements", one, other)
assert graphs() == 1, f"{graphs()} graphs: the number of elements became a constant"
""",
    )
