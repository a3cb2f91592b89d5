# SPDX-License-Identifier: BSD-3-Clause
"""Random operators: moments, ranges and special values, dropout, error texts.

Seeds are fixed, so the statistical tests are deterministic. Which draw an element takes is tested
in test_random.py.
"""

import math

import pytest
import torch

import torch_npusim  # noqa: F401  (for where autoload has stepped back)

DEV = "npusim"
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def _out(shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device=DEV)


# --- Values -------------------------------------------------------------------------------------

COUNT = 200_000


def _check_moments(sample, mean, variance):
    """Mean within five standard errors; variance within three percent."""
    sample = sample.double().cpu()
    assert abs(sample.mean().item() - mean) < 5 * math.sqrt(variance / len(sample))
    assert sample.var().item() == pytest.approx(variance, rel=0.03)


@pytest.mark.parametrize("dtype", FLOATS)
def test_moments(dtype):
    torch.manual_seed(2024)
    x = torch.empty(COUNT, dtype=dtype, device=DEV)
    _check_moments(x.uniform_(-1, 3).double(), 1, 16 / 12)
    _check_moments(x.normal_(2, 3), 2, 9)
    _check_moments(x.exponential_(4), 0.25, 1 / 16)
    _check_moments(x.geometric_(0.3), 1 / 0.3, 0.7 / 0.09)
    _check_moments(x.bernoulli_(0.2), 0.2, 0.16)
    _check_moments(x.random_(0, 10), 4.5, 99 / 12)
    mean, variance = math.exp(0.125), (math.exp(0.25) - 1) * math.exp(0.25)
    _check_moments(x.log_normal_(0, 0.5), mean, variance)
    quartiles = torch.quantile(x.cauchy_(1, 2).float().cpu(), torch.tensor([0.25, 0.5, 0.75]))
    torch.testing.assert_close(quartiles, torch.tensor([-1.0, 1.0, 3.0]), atol=0.1, rtol=0)


def test_moments_of_the_tail():
    torch.manual_seed(77)
    ones = torch.ones(COUNT, device=DEV)
    _check_moments(torch.poisson(3 * ones), 3, 3)
    _check_moments(torch.binomial(10 * ones, 0.3 * ones), 3, 2.1)
    _check_moments(torch._standard_gamma(2.5 * ones), 2.5, 2.5)
    dirichlet = torch._sample_dirichlet(torch.tensor([1.0, 2, 3], device=DEV).expand(COUNT, 3))
    _check_moments(dirichlet[:, 1].cpu(), 1 / 3, 2 * 4 / (36 * 7))
    weights = torch.tensor([1.0, 0, 3], device=DEV)
    picked = torch.multinomial(weights, COUNT, replacement=True).bincount(minlength=3).cpu()
    assert picked[1] == 0
    assert picked[2].item() == pytest.approx(0.75 * COUNT, rel=0.01)
    slopes = -torch.nn.functional.rrelu(-ones, 0.1, 0.5, training=True)
    _check_moments(slopes, 0.3, 0.16 / 12)


def test_normals_are_normal_and_independent():
    torch.manual_seed(31)
    z = torch.randn(1_000_000, device=DEV).double().cpu()
    assert abs((z**3).mean().item()) < 0.02
    assert (z**4).mean().item() == pytest.approx(3, abs=0.04)
    assert (z.abs() > 3).double().mean().item() == pytest.approx(0.0027, abs=0.0003)
    for lag in (1, 2, 3, 4, 256):
        assert abs((z[:-lag] * z[lag:]).mean().item()) < 0.005


def test_complex_normal_has_the_variance_asked_for():
    torch.manual_seed(32)
    z = torch.view_as_real(torch.randn(COUNT, dtype=torch.complex64, device=DEV)).cpu()
    _check_moments(z[:, 0], 0, 0.5)
    _check_moments(z[:, 1], 0, 0.5)


def test_normal_takes_mean_and_deviation_by_element():
    torch.manual_seed(33)
    mean = torch.tensor([[-5.0], [5.0]], device=DEV)
    std = torch.tensor([1.0, 2.0, 0.0], device=DEV)
    drawn = torch.normal(mean, std.expand(1000, 1, 3)).cpu()
    assert drawn.shape == (1000, 2, 3)
    torch.testing.assert_close(drawn.std(0), std.cpu().expand(2, 3), rtol=0.1, atol=1e-6)
    torch.testing.assert_close(drawn.mean(0), mean.cpu().expand(2, 3), rtol=0, atol=0.3)


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform_excludes_its_upper_end(dtype):
    torch.manual_seed(34)
    x = torch.rand(COUNT, dtype=dtype, device=DEV).cpu()
    assert (x >= 0).all()
    assert (x < 1).all()
    assert (torch.empty(9, dtype=dtype, device=DEV).uniform_(2, 2) == 2).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_exponential_is_never_zero(dtype):
    torch.manual_seed(35)
    assert (torch.empty(1_000_000, dtype=dtype, device=DEV).exponential_() > 0).all()


@pytest.mark.parametrize(
    ("dtype", "bounds"),
    [
        (torch.uint8, (0, 256)),
        (torch.int8, (-128, 128)),
        (torch.int16, (-3, 4)),
        (torch.int32, (-(2**31), 2**31)),
        (torch.int64, (-(2**62), 2**62)),
        (torch.uint32, (0, 2**32)),
        (torch.float32, (-(2**24), 2**24)),
        (torch.float16, (0, 2048)),
        (torch.bfloat16, (-4, 5)),
        (torch.float64, (2**40, 2**41)),
        (torch.bool, (0, 2)),
    ],
)
def test_random_stays_in_its_range_and_uses_all_of_it(dtype, bounds):
    torch.manual_seed(36)
    low, high = bounds
    x = torch.empty(20_000, dtype=dtype, device=DEV).random_(low, high).cpu().double()
    assert low <= x.min() < low + (high - low) * 0.01
    assert high - (high - low) * 0.01 - 1 <= x.max() < high


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool, *FLOATS]
)
def test_random_without_bounds_has_the_range_of_the_cpu(dtype):
    def extremes(device):
        torch.manual_seed(37)
        x = torch.empty(20_000, dtype=dtype, device=device).random_().cpu().double()
        return x.min().item(), x.max().item()

    low, high = extremes("cpu")
    assert extremes(DEV) == pytest.approx((low, high), rel=0.01, abs=0.01 * high)


def test_small_ranges_are_even():
    torch.manual_seed(38)
    counts = torch.randint(0, 7, (70_000,), device=DEV).bincount().cpu().double()
    assert len(counts) == 7
    assert ((counts - 10_000).abs() < 5 * math.sqrt(10_000)).all()


def test_bernoulli_is_sure_at_both_ends():
    p = torch.tensor([0.0, 1.0], device=DEV).repeat(500)
    assert torch.equal(torch.bernoulli(p), p)
    assert not _out((1000,)).bernoulli_(0.0).any()
    assert _out((1000,)).bernoulli_(1.0).all()


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, *FLOATS])
def test_a_bernoulli_mask_does_not_depend_on_its_dtype(dtype):
    torch.manual_seed(39)
    expected = torch.empty(777, device=DEV).bernoulli_(0.4)
    torch.manual_seed(39)
    assert torch.equal(_out((777,), dtype).bernoulli_(0.4).float(), expected)
    torch.manual_seed(39)
    p = torch.full((), 0.4, dtype=torch.float64)  # broadcast, and on the host as CUDA allows
    assert torch.equal(_out((777,), dtype).bernoulli_(p).float(), expected)


@pytest.mark.parametrize("count", [0, 1, 2, 255, 256, 257, 5000])
def test_randperm_is_a_permutation(count):
    torch.manual_seed(40)
    assert sorted(torch.randperm(count, device=DEV).tolist()) == list(range(count))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.float16, torch.float64])
def test_randperm_does_not_depend_on_dtype_and_strides(dtype):
    torch.manual_seed(41)
    expected = torch.randperm(200, device=DEV).cpu()
    torch.manual_seed(41)
    assert torch.equal(torch.randperm(200, device=DEV, dtype=dtype).cpu().long(), expected)
    torch.manual_seed(41)
    spread = torch.zeros(400, dtype=dtype, device=DEV)
    torch.randperm(200, dtype=dtype, device=DEV, out=spread[::2])
    assert torch.equal(spread[::2].cpu().long(), expected)
    assert not spread[1::2].any()


def test_randperm_favours_no_place():
    torch.manual_seed(42)
    places = torch.stack([torch.randperm(5, device=DEV) for _ in range(2000)]).cpu()
    for column in places.T:
        assert ((column.bincount(minlength=5) - 400).abs() < 5 * math.sqrt(400)).all()


# --- Dropout ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*FLOATS, torch.complex64])
def test_dropout_scales_what_it_keeps(dtype):
    torch.manual_seed(50)
    x = torch.randn(20_000, dtype=torch.float32).to(dtype)
    out, mask = torch.native_dropout(x.to(DEV), 0.25, True)
    assert mask.dtype == torch.bool
    assert mask.double().mean().item() == pytest.approx(0.75, abs=0.02)
    assert torch.equal(out.cpu(), x.mul(mask.cpu()).mul_(1 / 0.75))


def test_dropout_is_off_in_evaluation():
    x = torch.randn(100, device=DEV)
    assert torch.nn.functional.dropout(x, 0.5, training=False) is x
    assert torch.equal(torch.nn.Dropout(0.5).eval()(x), x)
    out, mask = torch.native_dropout(x, 0.5, False)
    assert torch.equal(out, x)
    assert out.data_ptr() != x.data_ptr()
    assert mask.all()


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_dropout_of_nothing_and_of_everything(p):
    x = torch.ones(100, device=DEV, requires_grad=True)
    y = torch.nn.functional.dropout(x, p)
    assert (y == 1 - p).all()
    y.sum().backward()
    assert (x.grad == 1 - p).all()


def test_dropout_sends_the_gradient_where_the_value_went():
    torch.manual_seed(51)
    x = torch.full((3, 1000), 2.0, device=DEV, requires_grad=True)
    y = torch.nn.Dropout(0.4)(x)
    y.backward(torch.full_like(y, 3.0))
    assert torch.equal(x.grad.cpu(), 1.5 * y.detach().cpu())
    assert 0 < (y == 0).sum().item() < y.numel()


def test_fused_dropout_takes_the_probability_to_keep():
    x = torch.full((4000,), 2.0, device=DEV, requires_grad=True)
    out, mask = torch._fused_dropout(x, 0.8, generator=torch.Generator(DEV).manual_seed(52))
    assert mask.dtype == torch.uint8
    assert mask.double().mean().item() == pytest.approx(0.8, abs=0.03)
    out.sum().backward()
    assert torch.equal(out, 2 * x.grad)
    assert torch.equal(x.grad, mask * 1.25)


def test_dropout_keeps_the_memory_format():
    x = torch.ones(2, 3, 8, 8, device=DEV).to(memory_format=torch.channels_last)
    out, mask = torch.native_dropout(x, 0.5, True)
    assert out.stride() == mask.stride() == x.stride()


def test_the_gradient_of_dropout_lies_as_on_cuda():
    """dropout_backward_cuda in aten/src/ATen/native/cuda/Dropout.cu: suggest_memory_format()."""
    mask = torch.tensor([[True, False, True], [True, True, False]])
    turned = torch.randn(3, 2).t()
    got = torch.ops.aten.native_dropout_backward(turned.to(DEV), mask.to(DEV), 2.0)
    assert got.stride() == (3, 1)
    assert torch.equal(got.cpu(), turned * mask * 2.0)
    last = torch.randn(2, 3, 8, 8, device=DEV).to(memory_format=torch.channels_last)
    got = torch.ops.aten.native_dropout_backward(last, last > 0, 2.0)
    assert got.is_contiguous(memory_format=torch.channels_last)
    with pytest.raises(RuntimeError, match="Mask should be Bool Scalar Type"):
        torch.ops.aten.native_dropout_backward(turned.to(DEV), mask.to(DEV).byte(), 2.0)


@pytest.mark.parametrize(
    "module",
    [
        torch.nn.Dropout1d(0.5),
        torch.nn.Dropout3d(0.5),
        torch.nn.AlphaDropout(0.5),
        torch.nn.FeatureAlphaDropout(0.5),
        torch.nn.RReLU(),
    ],
    ids=lambda module: type(module).__name__,
)
def test_modules_that_draw_repeat_under_a_seed(module):
    dims = 3 if isinstance(module, torch.nn.Dropout1d) else 5
    x = -torch.ones((2, 64, 3, 3, 3)[:dims], device=DEV)
    torch.manual_seed(52)
    first = module(x)
    torch.manual_seed(52)
    assert torch.equal(module(x), first)
    assert not torch.equal(module(x), first)


def test_dropout_keeps_what_is_not_finite_visible():
    x = torch.tensor([math.nan, math.inf], device=DEV).repeat(100)
    assert torch.nn.functional.dropout(x, 0.5)[::2].isnan().all()


# --- Error texts --------------------------------------------------------------------------------

REFUSED = {
    "uniform_ of integers": lambda d: torch.empty(3, dtype=torch.int32, device=d).uniform_(),
    "uniform_ reversed": lambda d: torch.empty(3, device=d).uniform_(2, 1),
    "uniform_ too wide": lambda d: torch.empty(3, device=d).uniform_(-3e38, 3e38),
    "uniform_ out of half": lambda d: torch.empty(3, dtype=torch.half, device=d).uniform_(0, 1e5),
    "normal_ of integers": lambda d: torch.empty(3, dtype=torch.int32, device=d).normal_(),
    "normal_ negative": lambda d: torch.empty(3, device=d).normal_(0, -1),
    "normal tensor negative": lambda d: torch.normal(0.0, torch.tensor([1.0, -1], device=d)),
    "exponential_ of integers": lambda d: torch.empty(
        3, dtype=torch.int32, device=d
    ).exponential_(),
    "exponential_ negative": lambda d: torch.empty(3, device=d).exponential_(-1),
    "cauchy_ of integers": lambda d: torch.empty(3, dtype=torch.int32, device=d).cauchy_(),
    "cauchy_ negative": lambda d: torch.empty(3, device=d).cauchy_(0, -1),
    "log_normal_ negative": lambda d: torch.empty(3, device=d).log_normal_(0, -1),
    "log_normal_ of complex": lambda d: torch.empty(3, dtype=torch.cfloat, device=d).log_normal_(),
    "geometric_ 0": lambda d: torch.empty(3, device=d).geometric_(0),
    "geometric_ of complex": lambda d: torch.empty(3, dtype=torch.cfloat, device=d).geometric_(0.5),
    "bernoulli_ above 1": lambda d: torch.empty(3, device=d).bernoulli_(2.0),
    "bernoulli_ of complex": lambda d: torch.empty(3, dtype=torch.cfloat, device=d).bernoulli_(),
    "random_ reversed": lambda d: torch.empty(3, device=d).random_(5, 5),
    "random_ out of half": lambda d: torch.empty(3, dtype=torch.half, device=d).random_(0, 70000),
    "random_ out of int8": lambda d: torch.empty(3, dtype=torch.int8, device=d).random_(0, 300),
    "random_ all of int16": lambda d: torch.empty(3, dtype=torch.int16, device=d).random_(
        -(2**63), None
    ),
    "random_ of uint32": lambda d: torch.empty(3, dtype=torch.uint32, device=d).random_(),
    "random_ of complex": lambda d: torch.empty(3, dtype=torch.cfloat, device=d).random_(),
    "uniform_ overlapping": lambda d: torch.empty(1, device=d).expand(4).uniform_(),
    "normal_ overlapping": lambda d: torch.empty(1, device=d).expand(4).normal_(),
    "bernoulli_ overlapping": lambda d: torch.empty(1, device=d).expand(4).bernoulli_(),
    "randperm negative": lambda d: torch.randperm(-1, device=d),
    "randperm of bool": lambda d: torch.randperm(5, dtype=torch.bool, device=d),
    "randperm of half": lambda d: torch.randperm(3000, dtype=torch.half, device=d),
    "randperm of uint8": lambda d: torch.randperm(300, dtype=torch.uint8, device=d),
    "dropout above 1": lambda d: torch.dropout(torch.ones(3, device=d), 1.5, True),
    "multinomial nothing": lambda d: torch.multinomial(torch.zeros(3, device=d), 1),
    "multinomial too many": lambda d: torch.multinomial(torch.ones(3, device=d), 4),
    "poisson negative": lambda d: torch.poisson(-torch.ones(3, device=d)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_arguments_are_refused_as_on_cpu(name):
    def refusal(device):
        with pytest.raises(Exception) as refused:  # noqa: PT011  (compared below)
            REFUSED[name](device)
        return refused.type, str(refused.value)

    kind, text = refusal(DEV)
    assert (kind, text.replace("_cuda", "_cpu")) == refusal("cpu")


def test_integers_are_no_probabilities():
    # An H100 says so, in other words than the CPU.
    with pytest.raises(RuntimeError, match="expected probabilities tensor to have floating type"):
        torch.bernoulli(torch.ones(3, dtype=torch.int64, device=DEV))


def test_probabilities_outside_of_the_unit_interval_are_named():
    with pytest.raises(RuntimeError, match=r"p to be in \[0, 1\], but got p=1.5"):
        torch.bernoulli(torch.tensor([0.5, 1.5], device=DEV))
    with pytest.raises(RuntimeError, match=r"between 0 and 1, but got -0.5"):
        torch.native_dropout(torch.ones(3, device=DEV), -0.5, True)


DRAWN_ON_THE_HOST = {
    "randperm": lambda g: torch.randperm(4, generator=g),
    "rand": lambda g: torch.rand(2, generator=g),
    "bernoulli": lambda g: torch.bernoulli(torch.ones(2), generator=g),
    "multinomial": lambda g: torch.multinomial(torch.ones(2), 1, generator=g),
    "poisson": lambda g: torch.poisson(torch.ones(2), generator=g),
    "split": lambda g: torch.utils.data.random_split(range(4), [2, 2], generator=g),
}


@pytest.mark.parametrize("name", DRAWN_ON_THE_HOST)
def test_the_devices_generator_draws_nothing_for_the_host(name):
    with pytest.raises(
        RuntimeError, match=r"^Expected a 'cpu' device type for generator but found 'npusim'$"
    ):
        DRAWN_ON_THE_HOST[name](torch.Generator("npusim"))
