# SPDX-License-Identifier: BSD-3-Clause
"""torch.compile on the device: tracing with fake tensors, functionalization, gradients.

Each contract compiles in a process of its own: the compiler leaves much behind.
"""

from npusim_conformance.contracts import contract
from npusim_conformance.properties.base import Run, require
from npusim_conformance.script import run_script, said

_HEAD = """
def program(x, weight):
    mixed = torch.nn.functional.gelu(x @ weight)
    mixed[:, 0].mul_(2.0)  # a view that is written to
    scaled = torch.softmax(mixed - mixed.mean(dim=1, keepdim=True), dim=1)
    return (scaled * mixed.cumsum(1)).sum(dim=0), scaled.argmax(dim=1)

def inputs(rows):
    numbers = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, 6, generator=numbers).to(device).requires_grad_()
    return x, torch.randn(6, 5, generator=numbers).to(device).requires_grad_()

def with_gradients(function, rows):
    arguments = inputs(rows)
    values, indices = function(*arguments)
    values.square().sum().backward()
    results = [values, indices, *(argument.grad for argument in arguments)]
    assert all(one.device == device for one in results), [one.device for one in results]
    return [one.detach().cpu() for one in results]

def holds(function, rows):
    names = ("values", "indices", "gradient of x", "gradient of weight")
    eager, compiled = with_gradients(program, rows), with_gradients(function, rows)
    for name, one, other in zip(names, eager, compiled):
        torch.testing.assert_close(other, one, msg=lambda text: f"{name}, {rows} rows: {text}")
"""


def _compiles(run: Run, script: str) -> None:
    done = run_script(run.under_test, _HEAD + script)
    require(done.returncode == 0, f"exit status {done.returncode}: {said(done.stderr)}")


@contract(quick=False)
def functionalization_changes_nothing(run: Run) -> None:
    """A function that writes to views gives the same without mutation, traced and run."""
    _compiles(
        run,
        """
from torch.fx.experimental.proxy_tensor import make_fx
x, weight = (one.detach() for one in inputs(4))
traced = make_fx(torch.func.functionalize(program), tracing_mode="fake")(x, weight)
written = [node for node in traced.graph.nodes if str(node.target).startswith("aten.mul_")]
assert not written, written
for one, other in zip(program(x, weight), traced(x, weight)):
    torch.testing.assert_close(other.cpu(), one.cpu())
""",
    )


@contract(quick=False)
def compiled_without_code_gives_the_same(run: Run) -> None:
    """torch.compile(backend="aot_eager"): values, indices and gradients are those of eager mode."""
    _compiles(run, 'holds(torch.compile(program, backend="aot_eager"), 4)\n')
