# SPDX-License-Identifier: BSD-3-Clause
"""Random numbers in compiled graphs: states that generators share, checkpoints that redraw."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint


def draws(generator):
    return torch.rand(4, device="npusim", generator=generator).tolist()


def test_graphsafe_state_is_shared():
    generator = torch.Generator("npusim").manual_seed(3)
    shared = generator.graphsafe_get_state()
    first = draws(generator)
    assert shared.get_offset() == generator.get_offset() > 0
    assert draws(shared) != first
    assert shared.get_offset() == generator.get_offset()


def test_graphsafe_set_state_moves_to_the_others_state():
    generator = torch.Generator("npusim").manual_seed(3)
    other = torch.Generator("npusim").manual_seed(4)
    own = generator.graphsafe_get_state()
    generator.graphsafe_set_state(other)
    assert generator.initial_seed() == 4
    draws(generator)
    assert other.get_offset() == generator.get_offset() > own.get_offset() == 0
    generator.graphsafe_set_state(own)
    assert generator.initial_seed() == 3


def test_a_clone_has_a_state_of_its_own():
    generator = torch.Generator("npusim").manual_seed(3)
    clone = generator.clone_state()
    first = draws(generator)
    assert clone.get_offset() == 0
    assert draws(clone) == first


def checkpointed(x, weight):
    """A loss whose gradient of x shows the mask that forward and backward each drew."""

    def body(x):
        return torch.nn.functional.dropout(x * weight, 0.5)

    return checkpoint(body, x, use_reentrant=False)


@pytest.mark.parametrize("backend", ["aot_eager", "aot_eager_decomp_partition"])
def test_a_checkpointed_dropout_has_the_same_mask_in_both_directions(backend):
    torch._dynamo.reset()
    compiled = torch.compile(checkpointed, backend=backend, fullgraph=True)
    weight = torch.full((256,), 3.0, device="npusim")
    masks = []
    for _ in range(3):
        x = torch.ones(256, device="npusim", requires_grad=True)
        y = compiled(x, weight)
        y.sum().backward()
        assert torch.equal(y.detach(), x.grad)  # 6 where kept, 0 elsewhere
        masks.append((y != 0).tolist())
    assert masks[0] != masks[1] != masks[2]


def test_a_checkpoint_that_draws_on_two_devices_is_refused():
    def body(x, y):
        return torch.nn.functional.dropout(x, 0.5), torch.nn.functional.dropout(y, 0.5)

    def both(x, y):
        return checkpoint(body, x * 1, y * 1, use_reentrant=False)

    torch._dynamo.reset()
    compiled = torch.compile(both, backend="aot_eager_decomp_partition", fullgraph=True)
    leaves = [torch.ones(64, device=f"npusim:{i}", requires_grad=True) for i in range(2)]
    with pytest.raises(Exception, match="Backend not supported for npusim"):
        compiled(*leaves)


def test_a_capture_has_the_buffers_of_compiled_code():
    """Compiled code writes a seed, and its kernel reads it: neither is an input of the capture."""
    torch._dynamo.reset()
    noisy = torch.compile(lambda x: x + torch.randn_like(x))
    x, graph = torch.zeros(10, device="npusim"), torch.npusim.NPUSIMGraph()
    noisy(x)
    with torch.npusim.graph(graph, check_input_liveness=True):
        y = noisy(x)
    graph.replay()
    first = y.tolist()
    graph.replay()
    assert y.tolist() != first
