# SPDX-License-Identifier: BSD-3-Clause
"""torch.npusim.random: seeds and states of the devices' generators."""

import pytest
import torch


def draw(device=0):
    return torch.rand(5, device=torch.device("npusim", device)).tolist()


def test_manual_seed_is_for_the_current_device():
    torch.npusim.manual_seed_all(1)
    other = torch.npusim.get_rng_state(1)
    torch.npusim.manual_seed(2)
    assert torch.npusim.initial_seed() == 2
    assert torch.equal(torch.npusim.get_rng_state("npusim:1"), other)
    with torch.npusim.device(1):
        assert torch.npusim.initial_seed() == 1


def test_seed_all_seeds_all_devices_alike():
    torch.npusim.seed_all()
    assert draw(0) == draw(1)


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


@pytest.mark.parametrize(
    "draw",
    [
        lambda **given: torch.rand(8, **given),
        lambda **given: torch.randn(8, **given),
        lambda **given: torch.randperm(8, **given),
        lambda generator, device: torch.empty(8, device=device).uniform_(generator=generator),
        lambda generator, device: torch.full((8,), 0.5, device=device).bernoulli_(
            generator=generator
        ),
        lambda generator, device: torch.multinomial(
            torch.ones(8, device=device), 4, generator=generator
        ),
    ],
)
def test_a_generator_serves_every_device_of_its_kind(draw):
    """CUDA compares the type only."""
    first, second = (torch.Generator(f"npusim:{i}").manual_seed(3) for i in range(2))
    x, y = draw(generator=first, device="npusim:1"), draw(generator=second, device="npusim:1")
    assert torch.equal(x, y)
    assert first.get_offset() == second.get_offset() > 0
