# SPDX-License-Identifier: BSD-3-Clause
"""Random operators: seeds, states and generators do what they should, and the values are drawn
from the distribution that they should come from.

Values are not the CPU's, unless the backend declares that its generator is.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from typing import ClassVar

import torch

from npusim_conformance.backend.device import CPU
from npusim_conformance.inputs.subjects import Subject, subjects
from npusim_conformance.judge.agreement import plain, same_bits
from npusim_conformance.properties.base import Dtypes, Property, Run, in_profiles, require
from npusim_conformance.properties.distributions import DISTRIBUTIONS, Distribution
from npusim_conformance.verdict import Mismatch, NotApplicable

P_MIN = 1e-6  # values less likely than that, for both seeds, are not of the distribution
Part = Callable[[Run, Distribution, torch.device], None]


class RandomProperty(Property):
    """A property of each random operator; its questions are numbered like samples."""

    profiles = in_profiles(standard=Dtypes.DEFAULT, full=Dtypes.ALL)
    parts: ClassVar[tuple[Part, ...]]

    def subjects(self) -> dict[str, Subject]:
        """Random operators of torch's database, and those that it lacks."""
        return _subjects()

    def dtypes(self, subject: Subject, policy: Dtypes) -> list[torch.dtype | None]:
        """Dtypes that the CPU can draw."""
        supported = DISTRIBUTIONS[subject.name].dtypes
        return list(supported[:1] if policy is Dtypes.DEFAULT else supported)

    def check(self, run: Run) -> None:
        """Each question by itself, numbered like samples."""
        distribution = DISTRIBUTIONS[run.subject.name]
        for number, part in enumerate(self.parts):
            run.attempt(number, _bind(part, run, distribution))


@cache
def _subjects() -> dict[str, Subject]:
    known = subjects("op")
    return {name: known.get(name) or Subject("op", name, "random") for name in DISTRIBUTIONS}


def _bind(part: Part, run: Run, distribution: Distribution) -> Callable[[torch.device], None]:
    return lambda device: part(run, distribution, device)


def _seeds(run: Run) -> tuple[int, int]:
    return run.seed + 1, run.seed + 2


def _drawn(
    run: Run,
    distribution: Distribution,
    device: torch.device,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    assert run.dtype is not None
    values = distribution.draw(device, run.dtype, generator)
    require(values.device == device, f"the result is on {values.device}, expected on {device}")
    return plain(values)


def _seeded(run: Run, distribution: Distribution, device: torch.device, seed: int) -> torch.Tensor:
    torch.manual_seed(seed)
    return _drawn(run, distribution, device)


def _equal_seeds(run: Run, distribution: Distribution, device: torch.device) -> None:
    one, other = _seeds(run)
    first = _seeded(run, distribution, device, one)
    again = _seeded(run, distribution, device, one)
    require(same_bits(first, again), "torch.manual_seed() with one seed gives other values")
    different = _seeded(run, distribution, device, other)
    require(
        not same_bits(first, different), "torch.manual_seed() with another seed changes nothing"
    )


def _consecutive_calls(run: Run, distribution: Distribution, device: torch.device) -> None:
    first = _seeded(run, distribution, device, _seeds(run)[0])
    second = _drawn(run, distribution, device)
    require(not same_bits(first, second), "a second call draws the same values again")


def _states(run: Run, distribution: Distribution, device: torch.device) -> None:
    read, write = _state_functions(run, device)
    torch.manual_seed(_seeds(run)[0])
    state = read()
    first = _drawn(run, distribution, device)
    write(state)
    again = _drawn(run, distribution, device)
    require(same_bits(first, again), "the generator's state, put back, gives other values")


def _state_functions(
    run: Run, device: torch.device
) -> tuple[Callable[[], torch.Tensor], Callable[[torch.Tensor], None]]:
    if device == CPU:
        return torch.get_rng_state, torch.set_rng_state
    module = run.under_test.module
    for name in ("get_rng_state", "set_rng_state"):
        if not run.under_test.has(name):
            raise NotApplicable(f"torch.{device.type} has no {name}()")
    return (
        lambda: module.get_rng_state(device.index),
        lambda state: module.set_rng_state(state, device.index),
    )


def _explicit_generators(run: Run, distribution: Distribution, device: torch.device) -> None:
    if not distribution.takes_generator:
        raise NotApplicable("the operator takes no generator")
    one, other = _seeds(run)
    generator = torch.Generator(device=device)
    first = _drawn(run, distribution, device, generator.manual_seed(one))
    again = _drawn(run, distribution, device, generator.manual_seed(one))
    require(same_bits(first, again), "a generator with one seed gives other values")
    different = _drawn(run, distribution, device, generator.manual_seed(other))
    require(not same_bits(first, different), "a generator with another seed changes nothing")
    state = generator.manual_seed(one).get_state()
    generator.manual_seed(other).set_state(state)
    again = _drawn(run, distribution, device, generator)
    require(same_bits(first, again), "a generator with a state put back gives other values")
    expected = _seeded(run, distribution, device, other)
    torch.manual_seed(other)
    _drawn(run, distribution, device, generator)
    got = _drawn(run, distribution, device)
    require(same_bits(expected, got), "an explicit generator moves the default one")


def _values(run: Run, distribution: Distribution, device: torch.device) -> None:
    """Improbable for both seeds is wrong; for one it may happen."""
    complaints = []
    for seed in _seeds(run):
        values = _seeded(run, distribution, device, seed).double()
        require(bool(values.isfinite().all()), "values that are not finite")
        complaint = ""
        if distribution.cdf is not None:
            complaint = _judge_continuous(values, distribution.cdf, run.dtype)
        elif distribution.masses is not None:
            complaint = _judge_discrete(values, dict(distribution.masses))
        if not complaint:
            return
        complaints.append(complaint)
    raise Mismatch(f"not of the distribution: {complaints[0]}; with another seed: {complaints[1]}")


def _cpu_values(run: Run, distribution: Distribution, device: torch.device) -> None:
    if not run.under_test.expectations.cpu_generator:
        raise NotApplicable("the backend does not declare the CPU's generator")
    seed = _seeds(run)[0]
    expected = _seeded(run, distribution, CPU, seed)
    got = _seeded(run, distribution, device, seed)
    run.agreement.check(expected, got, CPU, "values for the CPU's seed")


class Random(RandomProperty):
    """Values are of the distribution, and the CPU's where the backend declares its generator."""

    name = "random"
    parts = (_values, _cpu_values)


class Seeding(RandomProperty):
    """One seed repeats the values, another one or a second call changes them."""

    name = "seeding"
    parts = (_equal_seeds, _consecutive_calls)


class GeneratorState(RandomProperty):
    """A state put back repeats the values; an explicit generator has a state of its own."""

    name = "generator_state"
    parts = (_states, _explicit_generators)


def _judge_continuous(
    values: torch.Tensor, cdf: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype | None
) -> str:
    """The fault of draws from a continuous distribution, or nothing."""
    quantiles = cdf(values.flatten())
    count = len(quantiles)
    complaints = (
        f"{what} has probability {p:.2g}"
        for what, p in _tests_of_uniformity(quantiles)
        if p < P_MIN
    )
    repeated = int((values.flatten().sort().values.diff() == 0).sum())
    if dtype in (torch.float32, torch.float64) and repeated > count // 10:
        return f"{repeated} of {count} values are repeated"
    return next(complaints, "")


def _tests_of_uniformity(quantiles: torch.Tensor) -> Iterator[tuple[str, float]]:
    """(what, probability) of Kolmogorov and Smirnov's distance, and of neighbours' correlation."""
    count = len(quantiles)
    ranked = quantiles.sort().values
    steps = torch.arange(count + 1, dtype=torch.float64) / count
    distance = float(torch.maximum(steps[1:] - ranked, ranked - steps[:-1]).max())
    scaled = (math.sqrt(count) + 0.12 + 0.11 / math.sqrt(count)) * distance
    terms = (2 * (-1) ** (k - 1) * math.exp(-2 * (k * scaled) ** 2) for k in range(1, 101))
    p = sum(terms) if scaled > 0.3 else 1.0
    yield f"the distance {distance:.3g} from the distribution", p
    centred = quantiles - 0.5
    correlation = float((centred[1:] * centred[:-1]).mean() * 12)
    p = math.erfc(abs(correlation) * math.sqrt((count - 1) / 2))
    yield f"the correlation {correlation:.3g} of neighbours", p


def _judge_discrete(values: torch.Tensor, masses: dict[float, float]) -> str:
    """Pearson's test, with rare values counted together."""
    values = values.flatten()
    observed = Counter(round(value, 2) for value in values.tolist())
    foreign = [value for value in observed if masses.get(value, 0) == 0]
    if foreign:
        return f"the value {foreign[0]:g}, which is none of the distribution"
    count = len(values)
    common = [value for value, mass in masses.items() if mass * count >= 10]
    pairs = [(observed[value], masses[value] * count) for value in common]
    rest = count - sum(expected for _, expected in pairs)
    if rest >= 1:
        pairs.append((count - sum(seen for seen, _ in pairs), rest))
    statistic = sum((seen - expected) ** 2 / expected for seen, expected in pairs)
    freedom = torch.tensor(len(pairs) - 1, dtype=torch.float64)
    p = float(torch.special.gammaincc(freedom / 2, torch.tensor(statistic / 2).double()))
    return f"Pearson's statistic {statistic:.3g} has probability {p:.2g}" if p < P_MIN else ""


PROPERTIES = [Random, Seeding, GeneratorState]
