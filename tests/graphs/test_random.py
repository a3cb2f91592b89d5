# SPDX-License-Identifier: BSD-3-Clause
"""Random numbers in graphs: what a replay draws, and which generators a capture may use."""

import pytest
import torch
from torch import nn

DEVICE = "npusim"


def captured(function):
    graph = torch.npusim.NPUSIMGraph()
    with torch.npusim.graph(graph):
        result = function()
    return graph, result


def test_random_numbers_go_on_at_each_replay():
    torch.manual_seed(3)
    x = torch.ones(1000, device=DEVICE)
    eager = [nn.functional.dropout(x).cpu() for _ in range(3)]
    torch.manual_seed(3)
    graph, y = captured(lambda: nn.functional.dropout(x))
    replayed = []
    for _ in range(3):
        graph.replay()
        replayed.append(y.cpu())
    assert all(map(torch.equal, eager, replayed))
    assert not torch.equal(replayed[0], replayed[1])


def test_a_generator_of_ones_own_goes_on_too():
    generator = torch.Generator(DEVICE).manual_seed(5)
    eager = [torch.rand(8, device=DEVICE, generator=generator).cpu() for _ in range(2)]
    generator.manual_seed(5)
    graph = torch.npusim.NPUSIMGraph()
    graph.register_generator_state(generator)
    with torch.npusim.graph(graph):
        y = torch.rand(8, device=DEVICE, generator=generator)
    assert generator.get_offset() == 0
    for expected in eager:
        graph.replay()
        assert torch.equal(y.cpu(), expected)


def test_a_replay_draws_from_the_state_that_the_capture_drew_from():
    """As checkpoints do in compiled code: the generator takes a registered state for a while."""
    default, other = torch.npusim.default_generators[0], torch.Generator(DEVICE).manual_seed(9)
    expected = torch.rand(8, device=DEVICE, generator=other).cpu()
    other.manual_seed(9)
    graph = torch.npusim.NPUSIMGraph()
    graph.register_generator_state(other)
    with torch.npusim.graph(graph):
        own = default.graphsafe_get_state()
        default.graphsafe_set_state(other)
        y = torch.rand(8, device=DEVICE)
        default.graphsafe_set_state(own)
    before = default.get_offset()
    graph.replay()
    assert torch.equal(y.cpu(), expected)
    assert default.get_offset() == before


@pytest.mark.parametrize("registered", ["npusim:1", "npusim"])
def test_a_generator_must_be_registered(registered):
    """CUDA registers the default generator of the device that captures, and nobody else's."""
    graph, other = torch.npusim.NPUSIMGraph(), torch.Generator(DEVICE)
    graph.register_generator_state(torch.Generator(registered))
    with pytest.raises(RuntimeError, match="generator not in capture mode"):
        with torch.npusim.graph(graph):
            torch.rand(8, device=DEVICE, generator=other)
    with pytest.raises(RuntimeError, match="before"), torch.npusim.graph(graph):
        graph.register_generator_state(other)
    with pytest.raises(RuntimeError, match="generator"):
        graph.register_generator_state(torch.Generator())


@pytest.mark.parametrize(
    "call",
    [
        lambda generator: generator.seed(),
        lambda generator: generator.initial_seed(),
        lambda generator: generator.get_state(),
        lambda generator: generator.set_state(torch.zeros(16, dtype=torch.uint8)),
        lambda generator: generator.set_offset(4),
        lambda generator: generator.get_offset(),
        lambda generator: generator.manual_seed(generator_seed + 1),
        lambda generator: torch.manual_seed(generator_seed + 1),
        lambda generator: torch.npusim.manual_seed_all(generator_seed + 1),
    ],
    ids=["seed", "initial_seed", "get_state", "set_state", "set_offset", "get_offset",
         "manual_seed", "torch", "all"],
)  # fmt: skip
def test_a_capture_does_not_seed(call):
    generator = torch.npusim.default_generators[0]
    torch.manual_seed(generator_seed)
    before = generator.get_state()
    with (
        pytest.raises(RuntimeError, match=r"CUDAGeneratorImpl::\w+ "),
        torch.npusim.graph(torch.npusim.NPUSIMGraph()),
    ):
        call(generator)
    assert torch.equal(generator.get_state(), before)
    with torch.npusim.graph(torch.npusim.NPUSIMGraph()):
        torch.rand(4, device=DEVICE)
        generator.manual_seed(generator_seed)  # the same seed is allowed, and does nothing
    assert torch.equal(generator.get_state(), before)


generator_seed = 11
