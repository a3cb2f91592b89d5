# SPDX-License-Identifier: BSD-3-Clause
"""Compiled code under the other tools: the rules for CUDA, torch.profiler, the timeline."""

import torch
from torch.profiler import ProfilerActivity, profile

from torch_npusim.sim import timeline

DEVICE = "npusim"


def pointwise(x, y):
    return (x * 2 + y).relu()


def test_the_rules_for_cuda_hold_for_fused_and_eager_kernels_alike():
    def function(x, weight):
        return torch.nn.functional.gelu(x @ weight).sum(0)

    x, weight = (torch.randn(8, 8, device=DEVICE, requires_grad=True) for _ in range(2))
    before = torch.npusim.set_rules("cuda")
    try:
        compiled = torch.compile(function, fullgraph=True)
        found = torch.autograd.grad(compiled(x, weight).sum(), (x, weight))
        expected = torch.autograd.grad(function(x, weight).sum(), (x, weight))
    finally:
        torch.npusim.set_rules(before)
    torch.testing.assert_close(found, expected)


def test_a_profile_has_fused_kernels_on_the_devices_streams():
    compiled = torch.compile(pointwise, fullgraph=True)
    x, y = torch.ones(64, device=DEVICE), torch.ones(64, device=DEVICE)
    compiled(x, y)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as found:
        compiled(x, y)
    rows = {row.key: row for row in found.key_averages()}
    row = rows["npusim_fused_add_mul_relu_0"]
    assert row.count == 1
    assert row.device_time_total > 0


def test_a_timeline_has_them_with_their_bytes():
    compiled = torch.compile(pointwise, fullgraph=True)
    x, y = torch.ones(64, device=DEVICE), torch.ones(64, device=DEVICE)
    compiled(x, y)
    with timeline.record() as made:
        compiled(x, y)
    (row,) = made.commands()
    assert (row.name, row.bytes, row.flops) == ("npusim_fused_add_mul_relu_0", 3 * 256, 3 * 64)


def test_of_many_accesses_the_buffers_are_told_and_a_graph_holds_them():
    xs = [torch.full((8,), float(i), device=DEVICE) for i in range(40)]
    compiled = torch.compile(lambda xs: [x * 2 for x in xs], fullgraph=True)
    compiled(xs)
    with timeline.record() as made:
        compiled(xs)
    assert len(made.commands()) == 1
    assert made.commands()[0].operand_bytes == 2 * 40 * 32
    graph = torch.npusim.NPUSIMGraph()
    with torch.npusim.graph(graph):
        results = compiled(xs)
    for result in results:
        result.fill_(-1)
    graph.replay()
    assert [result[0].item() for result in results] == [2.0 * i for i in range(40)]
