# SPDX-License-Identifier: BSD-3-Clause
"""Calls that a capture refuses, and replays that read what is gone."""

import torch

from claims.claim import Brief
from claims.lists.device_calls import check, x
from torch_npusim.testing import allow_sync


def capture(call, data, **options):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **options):
        result = call(data)
    return graph, result


def drawn_in_a_graph(registered):
    generator = torch.Generator("cuda")
    graph = torch.cuda.CUDAGraph()
    if registered:
        graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        torch.rand(4, device="cuda", generator=generator)


def step_in_a_graph(capturable):
    weight = x().requires_grad_()
    weight.grad = x()
    optimizer = torch.optim.Adam([weight], capturable=capturable)
    optimizer.step() if capturable else None
    capture(lambda _: optimizer.step(), weight)


def replay(copies):
    static = x()
    graph, result = capture(lambda data: data * 2, static)
    fresh = x() * 3
    if copies:
        static.copy_(fresh)
    else:
        static = fresh
    graph.replay()
    check((result == 6).all())


def replay_of_a_dead_input(alive):
    static = x(1024)
    graph, result = capture(lambda data: data * 2, static)
    kept = static if alive else None
    del static
    other = torch.zeros(1024, device="cuda")
    graph.replay()
    check((result == 2).all())
    return kept, other


CAPTURING = r"operation (not permitted|would make the legacy stream)|capturing"


def kept_results(keep):
    step = torch.compile(lambda data: data * 2, mode="reduce-overhead")
    results = [keep(step(x(8))) for _ in range(3)]
    torch._dynamo.reset()
    with allow_sync():
        assert [result.sum().item() for result in results] == [16.0] * 3


CLAIMS = {
    "number_in_a_capture": Brief(
        r"called a synchronizing CUDA operation",
        lambda data: capture(lambda data: data / data.sum().item(), data),
        lambda data: capture(lambda data: data / data.sum(), data),
    ),
    "synchronises_in_a_capture": Brief(
        CAPTURING,
        lambda data: capture(lambda data: torch.cuda.synchronize(), data),
        lambda data: (capture(lambda data: data + 1, data), torch.cuda.synchronize()),
    ),
    "generator_unknown_to_a_graph": Brief(
        r"register|not in capture|Generator",
        lambda data: drawn_in_a_graph(False),
        lambda data: drawn_in_a_graph(True),
    ),
    "optimizer_that_no_graph_can_record": Brief(
        r"capturable",
        lambda data: step_in_a_graph(False),
        lambda data: step_in_a_graph(True),
    ),
    "new_batch_that_no_graph_reads": Brief(
        r"AssertionError|assert bool", lambda data: replay(False), lambda data: replay(True)
    ),
    "input_of_a_graph_is_freed": Brief(
        r"AssertionError|assert bool|freed",
        lambda data: replay_of_a_dead_input(False),
        lambda data: replay_of_a_dead_input(True),
    ),
    "result_of_the_step_before": Brief(
        r"accessing tensor output of CUDAGraphs that has been overwritten by a subsequent run",
        lambda data: kept_results(lambda result: result),
        lambda data: kept_results(torch.clone),
    ),
}
