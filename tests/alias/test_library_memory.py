# SPDX-License-Identifier: BSD-3-Clause
"""Memory that CUDA's libraries hold beside tensors counts under the alias, as on a GPU."""

import threading

import pytest
import torch

from torch_npusim.sim import dry
from torch_npusim.testing import leaks

WORKSPACE = 8_519_680  # bytes, of capability 8.0: CublasHandlePool.cpp, parseChosenWorkspaceSize()
NUMBERS = 2  # blocks, seed and offset of a generator: CUDAGeneratorImpl.cpp, initialize()


@pytest.fixture(autouse=True)
def _no_workspaces():
    torch._C._cuda_clearCublasWorkspaces()
    yield
    torch._C._cuda_clearCublasWorkspaces()


def held(function, *args):
    """Returns the bytes that a call leaves beside its results."""
    before = torch.cuda.memory_allocated()
    function(*args)
    return torch.cuda.memory_allocated() - before


def on(stream, function):
    def call(*args):
        with torch.cuda.stream(stream):
            function(*args)

    return call


X = {"device": "cuda"}
PRODUCTS = {
    "mm": lambda: torch.ones(4, 4, **X) @ torch.ones(4, 4, **X),
    "mm.out": lambda: torch.mm(
        torch.ones(4, 4, **X), torch.ones(4, 4, **X), out=torch.ones(4, 4, **X)
    ),
    "bmm": lambda: torch.ones(2, 4, 4, **X) @ torch.ones(2, 4, 4, **X),
    "mv": lambda: torch.ones(4, 4, **X) @ torch.ones(4, **X),
    "dot": lambda: torch.dot(torch.ones(4, **X), torch.ones(4, **X)),
    "einsum": lambda: torch.einsum("ab,cb->ac", torch.ones(4, 4, **X), torch.ones(4, 4, **X)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_the_first_product_keeps_a_workspace(name):
    assert held(PRODUCTS[name]) == WORKSPACE
    assert held(PRODUCTS[name]) == 0
    torch._C._cuda_clearCublasWorkspaces()
    assert held(PRODUCTS[name]) == WORKSPACE


def test_a_product_with_a_bias_keeps_one_of_cublaslt_into_a_given_result_too():
    x, bias, out = torch.ones(4, 4, **X), torch.ones(4, **X), torch.ones(4, 4, **X)
    assert held(lambda: torch.addmm(bias, x, x, out=out)) == WORKSPACE + (1 << 20)


def test_a_workspace_is_no_leak():
    with leaks.allocation_stacks():
        since = leaks.mark()
        PRODUCTS["mm"]()
        assert leaks.live_blocks(since) == []


def test_a_linear_layer_keeps_that_of_cublaslt_too():
    layer = torch.nn.Linear(4, 4, **X)
    assert held(layer, torch.ones(2, 4, **X)) == WORKSPACE + (1 << 20)


def test_each_stream_has_one():
    product = PRODUCTS["mm"]
    assert held(product) == WORKSPACE
    assert held(on(torch.cuda.Stream(), product)) == WORKSPACE


def test_threads_hand_their_handles_on():
    product = PRODUCTS["mm"]
    product()
    before = torch.cuda.memory_allocated()
    for _ in range(8):  # the system may end one while the next begins
        thread = threading.Thread(target=product)
        thread.start()
        thread.join()
    assert WORKSPACE <= torch.cuda.memory_allocated() - before < 8 * WORKSPACE


def test_nothing_to_multiply_needs_no_workspace():
    assert held(lambda: torch.ones(0, 4, **X) @ torch.ones(4, 4, **X)) == 0
    assert held(lambda: torch.ones(4, 4) @ torch.ones(4, 4)) == 0


def test_the_variable_of_cublas_says_the_size(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":128:8:64:16:32:32")
    assert held(PRODUCTS["mm"]) == 3072 << 10


def test_a_dry_run_counts_as_a_wet_one():
    wet = held(PRODUCTS["mm"])
    with dry.dry_run():
        assert held(PRODUCTS["mm"]) == wet == WORKSPACE
        assert held(PRODUCTS["mm"]) == 0
    assert held(PRODUCTS["mm"]) == 0


SCRIPT = """
import torch
x = torch.ones(4, 4, device="npusim")
before = torch.npusim.memory_allocated()
x = x @ x
print(torch.npusim.memory_allocated() - before)
"""


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"NPUSIM_AS_CUDA": "1", "NPUSIM_CUDA_CAPABILITY": "9.0"}, 32 << 20),
        ({"NPUSIM_AS_CUDA": "1", "NPUSIM_SPEC": "h100-sxm"}, 32 << 20),
        ({"NPUSIM_AS_CUDA": "1", "NPUSIM_SPEC": "t4"}, WORKSPACE),
        ({}, 0),
    ],
)
def test_the_chip_says_the_size_and_npusim_has_none(run_script, variables, expected):
    assert run_script(SCRIPT, environment=variables).stdout == f"{expected}\n"


# --- Graphs


def work():
    torch.ones(1, **X)


def smallest(count=1):
    """Returns the bytes of a block of so many numbers, by default the smallest."""
    kept = []
    return held(lambda: kept.append(torch.ones(count, **X)))


def captured(graph, function):
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin()
        made = function()
        graph.capture_end()
    return made


def test_a_capture_holds_two_numbers_for_each_generator():
    torch.cuda.empty_cache()
    graphs = [torch.cuda.CUDAGraph() for _ in range(3)]
    default = torch.cuda.default_generators[0]
    for graph in graphs:
        graph.register_generator_state(default.clone_state())
        assert held(captured, graph, work) == 2 * NUMBERS * smallest()
    assert held(graphs[0].reset) == -2 * NUMBERS * smallest()
    del graph
    assert held(graphs.clear) == -4 * NUMBERS * smallest()


def test_a_graph_gives_the_workspace_of_its_stream_back():
    x = torch.full((4, 4), 2.0, device="cuda")
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    graph = torch.cuda.CUDAGraph()
    made = captured(graph, lambda: x @ x)
    for value in (2.0, 3.0):
        x.fill_(value)
        graph.replay()
        assert made.eq(4 * value * value).all()
    kept = WORKSPACE + NUMBERS * smallest() + smallest(made.numel())
    assert torch.cuda.memory_allocated() - before[0] == kept
    del graph, made
    torch.cuda.empty_cache()
    assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == before


def test_a_graph_of_older_presets_leaves_the_workspace(run_python):
    # As peaks of an H100 under torch 2.11 show.
    program = """
import torch
x = torch.ones(4, 4, device="cuda")
torch.cuda.empty_cache()
before = torch.cuda.memory_allocated()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    made = x @ x
del graph, made
print(torch.cuda.memory_allocated() - before > 1 << 20)
"""
    for preset, expected in (("cuda-2.11", "True"), ("cuda-2.13", "False")):
        environment = {"NPUSIM_AS_CUDA": "1", "NPUSIM_AUTOLOAD": "1", "NPUSIM_ALLOCATOR": preset}
        assert run_python(program, environment=environment).split() == [expected]


FULL = """
import torch
x, a = torch.ones(4, 4, device="cuda"), torch.eye(4, device="cuda")
y = torch.zeros(4, 4, device="cuda")
kept = []
try:
    while True:
        kept.append(torch.empty(2 << 20, dtype=torch.uint8, device="cuda"))
except torch.OutOfMemoryError:
    pass
for product in (lambda: x.addmm_(a, a), lambda: torch.mm(a, a, out=y)):
    try:
        product()
    except torch.OutOfMemoryError:
        print("no memory")
print(x.sum().item(), y.sum().item())
"""


def test_a_product_without_memory_for_its_workspace_writes_nothing(run_python):
    environment = {"NPUSIM_AS_CUDA": "1", "NPUSIM_DEVICE_MEMORY": "64MiB"}
    assert run_python(FULL, environment=environment) == "no memory\nno memory\n16.0 0.0\n"
