# SPDX-License-Identifier: BSD-3-Clause
"""Scripts that compile on the device and compare with eager mode, for contracts of two groups.

Each script has a process of its own: the compiler leaves much behind.
"""

from npusim_conformance.contracts.apart.script import run_script, said
from npusim_conformance.processes import end_of
from npusim_conformance.properties.base import Run, require
from npusim_conformance.verdict import NotApplicable

_LEFT_OUT = "left out: "

# Compiled code may compute in another order than eager mode; what it gets wrong is far off.
_HEAD = """
def say_the_cause_last(kind, error, trace):
    sys.__excepthook__(kind, error, trace)
    print(f"{kind.__name__}: {' '.join(str(error).split())[:400]}", file=sys.stderr)

sys.excepthook = say_the_cause_last  # torch's own errors end with advice

def close(what, expected, got):
    got, expected = got.detach(), expected.detach()
    told = (got.device, got.dtype, tuple(got.shape))
    wanted = (expected.device, expected.dtype, tuple(expected.shape))
    assert told == wanted, f"{what}: {told}, in eager mode {wanted}"
    torch.testing.assert_close(
        got.cpu(), expected.cpu(), rtol=1e-4, atol=1e-4, equal_nan=True,
        msg=lambda text: f"{what}: {text}",
    )

def program(x, weight):
    mixed = torch.nn.functional.gelu(x @ weight)
    mixed[:, 0].mul_(2.0)  # a view that is written to
    scaled = torch.softmax(mixed - mixed.mean(dim=1, keepdim=True), dim=1)
    return (scaled * mixed.cumsum(1)).sum(dim=0), scaled.argmax(dim=1)

def inputs(rows, device=device):
    numbers = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, 6, generator=numbers).to(device).requires_grad_()
    return x, torch.randn(6, 5, generator=numbers).to(device).requires_grad_()

def with_gradients(function, rows, device):
    arguments = inputs(rows, device)
    values, indices = function(*arguments)
    values.square().sum().backward()
    return [values, indices, *(argument.grad for argument in arguments)]

def holds(function, rows, device=device):
    names = ("values", "indices", "gradient of x", "gradient of weight")
    eager, compiled = (with_gradients(one, rows, device) for one in (program, function))
    for name, one, other in zip(names, eager, compiled):
        close(f"{name}, {rows} rows", one, other)

def graphs():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]

def serves(function, sizes):
    '''One graph is right for all sizes, and is not made again.'''
    for rows in sizes:
        holds(function, rows)
        assert graphs() == 1, f"{rows} rows made graph {graphs()}: a size became a constant"
"""

# A backend may wait for this import to register its own.
_WITH_A_GENERATOR = f"""
import torch._inductor.compile_fx
from torch._inductor.codegen import common
common.init_backend_registration()
if common.get_scheduling_for_device(device.type) is None:
    print("{_LEFT_OUT}Inductor has no code generator for", device.type)
    sys.exit(0)
# Caches of graphs need not know when a generator has changed. That of compiled sources stays.
torch._inductor.config.fx_graph_cache = False
torch._functorch.config.enable_autograd_cache = False
"""


def compiles(run: Run, script: str, generator: bool = False) -> None:
    """Runs a script that finds the functions above; n/a where Inductor writes no code for it.

    Raises Mismatch with what the script says last, where it does not end well.
    """
    head = _WITH_A_GENERATOR + _HEAD if generator else _HEAD
    done = run_script(run.under_test, head + script)
    require(done.returncode == 0, f"it ended {end_of(done.returncode)}: {said(done.stderr)}")
    if done.stdout.startswith(_LEFT_OUT):
        raise NotApplicable(done.stdout.strip().removeprefix(_LEFT_OUT))
