# SPDX-License-Identifier: BSD-3-Clause
"""Properties of random operators see generators that do not repeat, and wrong distributions."""

import dataclasses

import pytest
import torch
from conformance.single_cases import FAIL, NA, PASS, bench

from npusim_conformance.backend.expectations import Expectations
from npusim_conformance.properties.distributions import COUNT, DISTRIBUTIONS

__all__ = ["bench"]


@pytest.fixture
def planted(bench, monkeypatch):
    """Puts wrong(right, device, dtype, generator) in the place of a random call."""

    def plant(name, wrong):
        right = DISTRIBUTIONS[name].draw

        def draw(device, dtype, generator):
            if device.type == "cpu":
                return right(device, dtype, generator)
            return wrong(right, device, dtype, generator)

        changed = dataclasses.replace(DISTRIBUTIONS[name], draw=draw)
        monkeypatch.setitem(DISTRIBUTIONS, name, changed)

    bench.plant_draw = plant
    return bench


@pytest.mark.parametrize("name", sorted(DISTRIBUTIONS))
def test_a_right_device_passes(bench, name):
    dtype = str(DISTRIBUTIONS[name].dtypes[0]).removeprefix("torch.")
    for asked in ("random", "seeding", "generator_state"):
        assert bench.status(f"op:{name}/{asked}/{dtype}") in (PASS, NA)


def message_of(bench, case):
    outcome = bench.outcome(case)
    assert outcome.status is FAIL
    assert outcome.upstream_samples == 0
    return outcome.message


def test_a_seed_that_is_ignored_is_seen(bench, monkeypatch):
    monkeypatch.setattr(torch.npusim, "manual_seed_all", lambda seed: None)
    message = message_of(bench, "op:bernoulli/seeding/float32")
    assert "one seed gives other values" in message
    assert bench.status("op:nn.functional.dropout/forward/float32") is PASS
    assert bench.status("op:nn.functional.dropout/determinism/float32") is NA
    assert bench.status("op:nn.functional.dropout/gradcheck/float64") is not FAIL


def test_a_seed_that_does_not_matter_is_seen(planted):
    def constant(right, device, dtype, generator):
        return torch.linspace(0, 1, COUNT, dtype=dtype, device=device)

    planted.plant_draw("rand", constant)
    assert "another seed changes nothing" in message_of(planted, "op:rand/seeding/float32")
    assert "correlation" in message_of(planted, "op:rand/random/float32")


def test_a_generator_that_does_not_advance_is_seen(planted):
    def stuck(right, device, dtype, generator):
        chosen = generator or torch.npusim.default_generators[0]
        before = chosen.get_state()
        drawn = right(device, dtype, generator)
        chosen.set_state(before)
        return drawn

    planted.plant_draw("rand", stuck)
    assert "second call draws the same" in message_of(planted, "op:rand/seeding/float32")


def test_a_state_that_is_not_put_back_is_seen(bench, monkeypatch):
    monkeypatch.setattr(torch.npusim, "set_rng_state", lambda state, device=None: None)
    assert "state, put back" in message_of(bench, "op:rand/generator_state/float32")
    assert bench.status("op:rand/seeding/float32") is PASS


def test_a_device_without_states_is_not_asked_for_them(bench, monkeypatch):
    monkeypatch.delattr(torch.npusim, "set_rng_state")
    assert bench.status("op:rand/generator_state/float32") is PASS


def test_an_explicit_generator_that_is_ignored_is_seen(planted):
    planted.plant_draw("rand", lambda right, device, dtype, generator: right(device, dtype, None))
    message = message_of(planted, "op:rand/generator_state/float32")
    assert message.endswith("a generator with one seed gives other values")


@pytest.mark.parametrize(
    ("name", "wrong", "said"),
    [
        ("randn", lambda values: values * 1.1, "distance"),
        ("randn", lambda values: values.sort().values, "correlation"),
        ("rand", lambda values: values[: COUNT // 4].repeat(4), "repeated"),
        ("exponential", lambda values: values.masked_fill(values > 5, float("inf")), "not finite"),
        ("uniform", lambda values: values * 0.9, "distance"),
        ("bernoulli", lambda values: values.roll(1).maximum(values), "Pearson"),
        ("randint", lambda values: values.clamp_min(1), "Pearson"),
        ("randint", lambda values: values + 1, "the value 10"),
        ("nn.functional.dropout", lambda values: values / 2, "none of the distribution"),
    ],
)
def test_another_distribution_is_seen(planted, name, wrong, said):
    planted.plant_draw(
        name, lambda right, device, dtype, generator: wrong(right(device, dtype, generator))
    )
    assert said in message_of(planted, f"op:{name}/random/float32")


def test_the_cpu_s_values_are_asked_of_a_backend_that_declares_them(bench):
    bench.expectations = Expectations(cpu_generator=True)
    assert "values for the CPU's seed" in message_of(bench, "op:rand/random/float32")
    assert bench.status("op:rand/random/float32", device="cpu") is PASS
