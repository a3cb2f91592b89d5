# SPDX-License-Identifier: BSD-3-Clause
"""Compiled code within graphs, and mode="reduce-overhead": compiled code as one graph."""

import pytest
import torch

from torch_npusim.sim import rules, timeline

DEVICE = "npusim"


def pointwise(x, y):
    return (x * 2 + y).relu()


def launched(function):
    """The commands that the host pays for, by name."""
    with timeline.record() as made:
        function()
    return [row.name for row in made.commands() if row.paid]


def randn(*shape):
    return torch.randn(*shape).to(DEVICE)


def test_a_capture_holds_compiled_code_and_changes_nothing():
    def change(x, y):
        x.mul_(3)
        return x + y

    x, y = randn(4, 5), randn(4, 5)
    first, second = (torch.compile(f, fullgraph=True) for f in (pointwise, change))
    first(x, y), second(x.clone(), y)
    before = x.clone()
    graph = torch.npusim.NPUSIMGraph()
    with torch.npusim.graph(graph):
        results = first(x, y), second(x, y)
    assert torch.equal(x, before)
    # Nothing has been computed: the memory holds whatever it held.
    assert not torch.equal(results[0], pointwise(x, y))
    assert not torch.equal(results[1], 3 * x + y)
    for _ in range(2):
        before = x.clone()
        assert launched(graph.replay) == ["npusim_fused_add_mul_relu_0"]
        assert torch.equal(results[0], pointwise(before, y))
        assert torch.equal(x, before * 3)
        assert torch.equal(results[1], x + y)


def test_what_reads_memory_of_the_host_is_refused_by_name():
    x, number = randn(4), torch.tensor(2.0)
    compiled = torch.compile(lambda x, number: x * number, fullgraph=True)
    compiled(x, number)
    graph = torch.npusim.NPUSIMGraph()
    with pytest.raises(NotImplementedError, match=r"npusim_fused_mul_0 .* uses host memory"):
        with torch.npusim.graph(graph):
            compiled(x, number)
    assert torch.equal(compiled(x, number), x * 2)


def test_reduce_overhead_is_one_launch():
    model = torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.Linear(8, 8), torch.nn.GELU())
    model = model.to(DEVICE)
    compiled = torch.compile(model, mode="reduce-overhead", fullgraph=True)
    for step in range(5):
        x = randn(4, 8)
        with torch.no_grad():
            commands = launched(lambda x=x: compiled(x))
            torch.testing.assert_close(compiled(x), model(x))
        if step > 1:
            assert len(commands) == 2, commands  # the copy of x, and the graph


def test_reduce_overhead_trains():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()).to(DEVICE)
    compiled = torch.compile(model, mode="reduce-overhead", fullgraph=True)
    for _ in range(7):
        x = randn(4, 8)
        model.zero_grad()
        compiled(x).square().sum().backward()
        expected = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
        for parameter, gradient in zip(model.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, gradient)


def trained(model, compiled, steps):
    """Returns the commands of each step; gradients are compared with eager ones."""
    launches = []
    for _ in range(steps):
        x = randn(4, 8)
        model.zero_grad()
        launches.append(len(launched(lambda x=x: compiled(x).square().sum().backward())))
        expected = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
        for parameter, gradient in zip(model.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, gradient)
    return launches


@pytest.mark.parametrize("chosen", ["off", "cuda"])
def test_what_a_replayed_forward_pass_saves_serves_the_replayed_backward(chosen):
    torch.compiler.reset()  # the first steps run as they are
    layers = [torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 8)]
    model = torch.nn.Sequential(*layers).to(DEVICE)
    compiled = torch.compile(model, mode="reduce-overhead", fullgraph=True)
    before = rules.set_rules(chosen)
    try:
        launches = trained(model, compiled, 10)
    finally:
        rules.set_rules(before)
    assert launches[-1] == launches[-2] < launches[0], launches


def test_results_of_a_replay_are_the_callers_for_as_long_as_he_likes():
    compiled = torch.compile(pointwise, mode="reduce-overhead", fullgraph=True)
    y = randn(4)
    inputs = [randn(4) for _ in range(9)]
    kept = [compiled(x, y) for x in inputs]
    for x, result in zip(inputs, kept, strict=True):
        assert torch.equal(result, pointwise(x, y))


def test_what_a_replay_cannot_change_runs_as_it_is():
    def change(x):
        return x.add_(1)

    compiled = torch.compile(change, mode="reduce-overhead", fullgraph=True)
    for _ in range(4):
        x = randn(4)
        before = x.clone()
        held = torch.empty(4, device=DEVICE)  # so that the next x is elsewhere
        compiled(x)
        assert torch.equal(x, before + 1)
        del held
    same = randn(4)
    before = same.clone()
    for _ in range(4):
        compiled(same)
    assert torch.equal(same, before + 4)


STEPS = """
import re
import torch

x = torch.ones(4, device="cuda")


def sums(function, step):
    \"\"\"Twice the function, and the sum of both results, three times.\"\"\"
    compiled = torch.compile(function, mode="reduce-overhead")
    for _ in range(3):
        step()
        first, second = compiled(x), compiled(x + 1)
        try:
            print((first + second)[0].item(), end=" ")
        except RuntimeError as error:
            print("overwritten" in str(error), end=" ")
    print()


def helper(x):
    doubled = x * 2
    torch._dynamo.graph_break()
    return doubled + 1


def trains(prepare):
    \"\"\"What four backward passes end in, then reads of their results, and of the gradient.\"\"\"
    layer = torch.nn.Linear(4, 1, device="cuda")
    compiled = torch.compile(layer, mode="reduce-overhead")
    kept = []
    for _ in range(4):
        prepare(layer)
        y = compiled(x)
        kept.append(compiled(x + 1).detach())
        print(ended(y.sum().backward), end=" ")
    print(*map(ended, (y.item for y in kept)), ended(layer.weight.grad.tolist))


def ended(function):
    try:
        function()
    except RuntimeError as error:
        return re.search("gradient|output", str(error))[0]


def with_zeros(layer):
    for parameter in layer.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)


trains(lambda layer: None)
trains(torch.nn.Module.zero_grad)
trains(with_zeros)
with torch.no_grad():
    sums(lambda x: x * 2, lambda: None)
    sums(lambda x: helper(x) + helper(x + 5), lambda: None)
    sums(lambda x: (x * 2).cpu(), lambda: None)
    held = torch.ones(4, device="cuda")
    changing = torch.compile(lambda: held.add_(1) * 2, mode="reduce-overhead")
    first, second = changing(), changing()
    print(first[0].item(), second[0].item())
    # From here on only marks begin steps.
    sums(lambda x: x * 2, torch.compiler.cudagraph_mark_step_begin)
"""


def test_results_end_in_later_steps_only(run_python):
    """A step is a marked one, or a call from outside of compiled code."""
    said = run_python(STEPS, environment={"NPUSIM_AS_CUDA": "1"}, timeout=500)
    trained = "None None None None output output output None None"
    ended = "True True True "
    assert said.splitlines() == [
        # `.grad` is the first backward pass's result: the second step has ended it.
        "None gradient gradient gradient output output output None gradient",
        *(trained, trained),
        *(ended, ended, "6.0 6.0 6.0 ", "4.0 6.0", "6.0 6.0 6.0 "),
    ]
