# SPDX-License-Identifier: BSD-3-Clause
"""torch.npusim.random: seeds and states of the devices' generators."""

import struct

import pytest
import torch


def draw(device=0):
    return torch.rand(5, device=torch.device("npusim", device)).tolist()


def test_state_is_seed_and_offset():
    torch.npusim.manual_seed(42)
    state = torch.npusim.get_rng_state()
    assert state.device.type == "cpu"
    assert state.dtype == torch.uint8
    assert struct.unpack("<Qq", bytes(state.tolist())) == (42, 0)
    draw()
    seed, offset = struct.unpack("<Qq", bytes(torch.npusim.get_rng_state().tolist()))
    assert seed == 42
    assert offset > 0
    assert offset % 4 == 0


def test_the_same_state_draws_the_same_numbers():
    state = torch.npusim.get_rng_state()
    first = draw()
    assert draw() != first
    torch.npusim.set_rng_state(state)
    assert draw() == first


def test_manual_seed_is_for_the_current_device():
    torch.npusim.manual_seed_all(1)
    other = torch.npusim.get_rng_state(1)
    torch.npusim.manual_seed(2)
    assert torch.npusim.initial_seed() == 2
    assert torch.equal(torch.npusim.get_rng_state("npusim:1"), other)
    with torch.npusim.device(1):
        assert torch.npusim.initial_seed() == 1


def test_torch_manual_seed_seeds_all_devices():
    torch.manual_seed(5)
    first = draw(0), draw(1)
    assert first[0] == first[1]
    torch.manual_seed(5)
    assert (draw(0), draw(1)) == first


def test_seed_differs_from_call_to_call():
    torch.npusim.seed()
    first = torch.npusim.initial_seed()
    torch.npusim.seed()
    assert torch.npusim.initial_seed() != first


def test_seed_all_seeds_all_devices_alike():
    torch.npusim.seed_all()
    assert draw(0) == draw(1)


def test_all_states_at_once():
    states = torch.npusim.get_rng_state_all()
    assert len(states) == 2
    first = draw(0), draw(1)
    torch.npusim.set_rng_state_all(states)
    assert (draw(0), draw(1)) == first


def test_default_generators_are_those_that_operators_use():
    torch.npusim.manual_seed_all(7)
    assert len(torch.npusim.default_generators) == 2
    generator = torch.npusim.default_generators[1]
    assert generator.device == torch.device("npusim:1")
    assert torch.npusim._get_generator(torch.device("npusim:1")).initial_seed() == 7
    before = torch.npusim._get_rng_state_offset(1)
    draw(1)
    assert torch.npusim._get_rng_state_offset(1) > before


def test_offset_can_be_set_to_multiples_of_four():
    torch.npusim._set_rng_state_offset(8)
    assert torch.npusim._get_rng_state_offset() == 8
    with pytest.raises(RuntimeError, match="multiple of 4"):
        torch.npusim._set_rng_state_offset(6)


def test_own_generators():
    first = torch.Generator(device="npusim").manual_seed(3)
    second = torch.Generator(device="npusim:1").manual_seed(3)
    assert second.device == torch.device("npusim:1")
    a = torch.rand(4, device="npusim", generator=first)
    b = torch.rand(4, device="npusim:1", generator=second)
    assert a.tolist() == b.tolist()


def test_a_generator_of_another_device_is_refused():
    with pytest.raises(RuntimeError, match="device"):
        torch.rand(4, device="npusim", generator=torch.Generator())
    with pytest.raises(RuntimeError, match="npusim:1"):
        torch.rand(4, device="npusim:0", generator=torch.Generator("npusim:1"))


def test_fork_rng_puts_the_states_back():
    torch.manual_seed(0)
    before = torch.npusim.get_rng_state_all()
    with torch.random.fork_rng(devices=[0, 1], device_type="npusim"):
        draw(0)
        torch.manual_seed(9)
    assert all(map(torch.equal, before, torch.npusim.get_rng_state_all()))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint_draws_the_same_dropout_again(use_reentrant):
    from torch.utils.checkpoint import checkpoint

    x = torch.ones(1000, device="npusim", requires_grad=True)

    def forward(value):
        return torch.nn.functional.dropout(value, 0.5) * value

    torch.manual_seed(1)
    result = checkpoint(forward, x, use_reentrant=use_reentrant)
    result.sum().backward()
    kept = result.detach() != 0
    assert torch.equal(x.grad != 0, kept)
    assert 300 < kept.sum().item() < 700


def test_wrong_states_are_refused():
    with pytest.raises((RuntimeError, TypeError)):
        torch.npusim.set_rng_state(torch.zeros(3, dtype=torch.uint8))
