# SPDX-License-Identifier: BSD-3-Clause
"""torch's random operators: a call, and the distribution that its values must have."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

COUNT = 20_000  # draws per call

Generator = torch.Generator | None
Draw = Callable[[torch.device, torch.dtype, Generator], torch.Tensor]
Cdf = Callable[[torch.Tensor], torch.Tensor]

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
WIDE = (torch.float32, torch.float64)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@dataclass(frozen=True)
class Distribution:
    """A random call. Values are continuous with a `cdf`, or discrete with `masses`, or neither.

    Neither: only reproducibility is asked. `takes_generator` is False where the call has none.
    """

    draw: Draw
    dtypes: tuple[torch.dtype, ...] = FLOATS
    cdf: Cdf | None = None
    masses: Mapping[float, float] | None = None
    takes_generator: bool = True


def _normal(mean: float, std: float) -> Cdf:
    return lambda x: torch.special.ndtr((x - mean) / std)


def _uniform(low: float, high: float) -> Cdf:
    return lambda x: ((x - low) / (high - low)).clamp(0, 1)


def _empty(device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(COUNT, device=device, dtype=dtype)


def _full(value: float, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    return torch.full((COUNT,), value, device=device, dtype=dtype)


def _geometric(p: float) -> dict[float, float]:
    return {float(k): p * (1 - p) ** (k - 1) for k in range(1, 100)}


def _poisson(rate: float) -> dict[float, float]:
    return {float(k): math.exp(-rate + k * math.log(rate) - math.lgamma(k + 1)) for k in range(60)}


def _binomial(count: int, p: float) -> dict[float, float]:
    return {float(k): math.comb(count, k) * p**k * (1 - p) ** (count - k) for k in range(count + 1)}


def _equal(values: int) -> dict[float, float]:
    return {float(value): 1 / values for value in range(values)}


_WEIGHTS = (1.0, 4.0, 2.0, 0.0, 1.0)
_MULTINOMIAL = {float(index): weight / 8 for index, weight in enumerate(_WEIGHTS)}
_KEPT = {0.0: 0.25, 1.0: 0.75}  # of ones under dropout with p = 1/4, scaled back


def _channels(dimensions: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    return torch.ones(COUNT // 100, 100, *(1,) * dimensions, device=device, dtype=dtype)


def _attention(device: torch.device, dtype: torch.dtype, generator: Generator) -> torch.Tensor:
    """Attention that weighs 64 values alike, before the weights are summed: dropout shows."""
    query = torch.zeros(1, COUNT // 64, 64, device=device, dtype=dtype)
    keys = torch.zeros(1, 64, 64, device=device, dtype=dtype)
    values = torch.eye(64, device=device, dtype=dtype)[None]
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(query, keys, values, dropout_p=0.25) * 48


def _rrelu(device: torch.device, dtype: torch.dtype, generator: Generator) -> torch.Tensor:
    slope = torch.nn.functional.rrelu(_full(-1, device, dtype), 0.25, 0.75, training=True)
    return -slope


def _low_rank(device: torch.device, dtype: torch.dtype, generator: Generator) -> torch.Tensor:
    matrix = torch.linspace(0, 9, 400, device=device, dtype=dtype).sin().reshape(20, 20)
    return torch.svd_lowrank(matrix, q=2, niter=0)[0]


def _principal(device: torch.device, dtype: torch.dtype, generator: Generator) -> torch.Tensor:
    matrix = torch.linspace(0, 9, 400, device=device, dtype=dtype).sin().reshape(20, 20)
    return torch.pca_lowrank(matrix, q=2, niter=0)[0]


def _pool(dimensions: int) -> Draw:
    def draw(device: torch.device, dtype: torch.dtype, generator: Generator) -> torch.Tensor:
        size = (4, 4, *(33,) * dimensions)
        image = torch.arange(math.prod(size), device=device).mul(97).remainder(251)
        functional = torch.nn.functional
        pools = {2: functional.fractional_max_pool2d, 3: functional.fractional_max_pool3d}
        return pools[dimensions](image.to(dtype).reshape(size), 2, output_size=9)

    return draw


_functional = torch.nn.functional

# By the name in torch's operator database, or, for what it lacks, the function's.
DISTRIBUTIONS: dict[str, Distribution] = {
    "bernoulli": Distribution(
        lambda device, dtype, generator: torch.bernoulli(
            _full(0.25, device, dtype), generator=generator
        ),
        masses={0.0: 0.75, 1.0: 0.25},
    ),
    "cauchy": Distribution(
        lambda device, dtype, generator: _empty(device, dtype).cauchy_(1, 0.5, generator=generator),
        cdf=lambda x: 0.5 + torch.atan((x - 1) / 0.5) / math.pi,
    ),
    "exponential": Distribution(
        lambda device, dtype, generator: _empty(device, dtype).exponential_(
            1.5, generator=generator
        ),
        cdf=lambda x: -torch.expm1(-1.5 * x.clamp_min(0)),
    ),
    "geometric": Distribution(
        lambda device, dtype, generator: _empty(device, dtype).geometric_(
            0.25, generator=generator
        ),
        dtypes=FLOATS + INTEGERS,
        masses=_geometric(0.25),
    ),
    "log_normal": Distribution(
        lambda device, dtype, generator: _empty(device, dtype).log_normal_(
            0, 0.5, generator=generator
        ),
        cdf=lambda x: torch.special.ndtr(torch.log(x) / 0.5),
    ),
    "multinomial": Distribution(
        lambda device, dtype, generator: torch.multinomial(
            torch.tensor(_WEIGHTS, dtype=dtype).to(device), COUNT, True, generator=generator
        ),
        masses=_MULTINOMIAL,
    ),
    "normal": Distribution(
        lambda device, dtype, generator: torch.normal(
            _full(1, device, dtype), _full(2, device, dtype), generator=generator
        ),
        cdf=_normal(1, 2),
    ),
    "normal.in_place": Distribution(
        lambda device, dtype, generator: _empty(device, dtype).normal_(1, 2, generator=generator),
        cdf=_normal(1, 2),
    ),
    "normal.number_mean": Distribution(
        lambda device, dtype, generator: torch.normal(
            1.0, _full(2, device, dtype), generator=generator
        ),
        cdf=_normal(1, 2),
    ),
    "rand_like": Distribution(
        lambda device, dtype, generator: torch.rand_like(_empty(device, dtype)),
        cdf=_uniform(0, 1),
        takes_generator=False,
    ),
    "randint": Distribution(
        lambda device, dtype, generator: torch.randint(
            0, 10, (COUNT,), device=device, dtype=dtype, generator=generator
        ),
        dtypes=FLOATS + INTEGERS,
        masses=_equal(10),
    ),
    "randint_like": Distribution(
        lambda device, dtype, generator: torch.randint_like(_empty(device, dtype), 0, 10),
        dtypes=FLOATS + INTEGERS,
        masses=_equal(10),
        takes_generator=False,
    ),
    "randn": Distribution(
        lambda device, dtype, generator: torch.randn(
            COUNT, device=device, dtype=dtype, generator=generator
        ),
        cdf=_normal(0, 1),
    ),
    "randn_like": Distribution(
        lambda device, dtype, generator: torch.randn_like(_empty(device, dtype)),
        cdf=_normal(0, 1),
        takes_generator=False,
    ),
    "uniform": Distribution(
        lambda device, dtype, generator: _empty(device, dtype).uniform_(-1, 3, generator=generator),
        cdf=_uniform(-1, 3),
    ),
    "nn.functional.dropout": Distribution(
        lambda device, dtype, generator: _functional.dropout(_full(0.75, device, dtype), 0.25),
        masses=_KEPT,
        takes_generator=False,
    ),
    "nn.functional.dropout2d": Distribution(
        lambda device, dtype, generator: (
            0.75 * _functional.dropout2d(_channels(2, device, dtype), 0.25)
        ),
        masses=_KEPT,
        takes_generator=False,
    ),
    "nn.functional.dropout3d": Distribution(
        lambda device, dtype, generator: (
            0.75 * _functional.dropout3d(_channels(3, device, dtype), 0.25)
        ),
        masses=_KEPT,
        takes_generator=False,
    ),
    "nn.functional.alpha_dropout": Distribution(
        lambda device, dtype, generator: (
            _functional.alpha_dropout(_full(4, device, dtype), 0.25, training=True) > 0
        ),
        masses=_KEPT,
        takes_generator=False,
    ),
    "nn.functional.feature_alpha_dropout.with_train": Distribution(
        lambda device, dtype, generator: (
            _functional.feature_alpha_dropout(4 * _channels(2, device, dtype), 0.25, training=True)
            > 0
        ),
        masses=_KEPT,
        takes_generator=False,
    ),
    "nn.functional.rrelu": Distribution(
        _rrelu,
        dtypes=(torch.float32, torch.float64, torch.bfloat16),
        cdf=_uniform(0.25, 0.75),
        takes_generator=False,
    ),
    "nn.functional.scaled_dot_product_attention": Distribution(
        _attention, masses=_KEPT, takes_generator=False
    ),
    "nn.functional.fractional_max_pool2d": Distribution(_pool(2), takes_generator=False),
    "nn.functional.fractional_max_pool3d": Distribution(_pool(3), takes_generator=False),
    "svd_lowrank": Distribution(_low_rank, dtypes=WIDE, takes_generator=False),
    "pca_lowrank": Distribution(_principal, dtypes=WIDE, takes_generator=False),
    "rand": Distribution(
        lambda device, dtype, generator: torch.rand(
            COUNT, device=device, dtype=dtype, generator=generator
        ),
        cdf=_uniform(0, 1),
    ),
    "random_": Distribution(
        lambda device, dtype, generator: _empty(device, dtype).random_(0, 10, generator=generator),
        dtypes=FLOATS + INTEGERS,
        masses=_equal(10),
    ),
    "randperm": Distribution(
        lambda device, dtype, generator: torch.randperm(
            COUNT, device=device, dtype=dtype, generator=generator
        ),
        dtypes=(torch.int64, torch.int32),
        cdf=_uniform(0, COUNT),
    ),
    "poisson": Distribution(
        lambda device, dtype, generator: torch.poisson(
            _full(4, device, dtype), generator=generator
        ),
        masses=_poisson(4),
    ),
    "binomial": Distribution(
        lambda device, dtype, generator: torch.binomial(
            _full(8, device, dtype), _full(0.25, device, dtype), generator=generator
        ),
        dtypes=WIDE,
        masses=_binomial(8, 0.25),
    ),
    "_standard_gamma": Distribution(
        lambda device, dtype, generator: torch._standard_gamma(
            _full(2, device, dtype), generator=generator
        ),
        dtypes=WIDE,
        cdf=lambda x: torch.special.gammainc(torch.full_like(x, 2), x.clamp_min(0)),
    ),
}
