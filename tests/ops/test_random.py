# SPDX-License-Identifier: BSD-3-Clause
"""Random operators: which draw every element takes, reproducibility, strides and threads.

The oracle is a Philox4x32-10 written here from the paper (Salmon et al., 2011), itself checked
against the paper's known answers. Moments and error texts are tested in test_random_values.py.
"""

import math

import numpy as np
import pytest
import torch

from torch_npusim.sim import alignment

DEV = "npusim"


# --- The reference ------------------------------------------------------------------------------


def philox(counter, key):
    """Ten rounds on counters of shape (4, n) under one key of two words."""
    c0, c1, c2, c3 = (np.asarray(c, dtype=np.uint64) for c in counter)
    k0, k1 = key
    low = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        left, right = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (
            (right >> np.uint64(32)) ^ c1 ^ np.uint64(k0),
            right & low,
            (left >> np.uint64(32)) ^ c3 ^ np.uint64(k1),
            left & low,
        )
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=-1)


def words(seed, offset, count):
    """The first `count` 32-bit draws of a call."""
    blocks = np.arange(-(-count // 4), dtype=np.uint64)
    counter = [
        np.full_like(blocks, offset & 0xFFFFFFFF),
        np.full_like(blocks, offset >> 32),
        blocks & np.uint64(0xFFFFFFFF),
        blocks >> np.uint64(32),
    ]
    return philox(counter, (seed & 0xFFFFFFFF, seed >> 32)).reshape(-1)[:count]


def long_words(seed, offset, count):
    """The first `count` 64-bit draws of a call."""
    pairs = words(seed, offset, 2 * count).reshape(-1, 2)
    return pairs[:, 0] | pairs[:, 1] << np.uint64(32)


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],  # digits of pi
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_the_reference_gives_the_known_answers(counter, key, answer):
    assert philox([[c] for c in counter], key)[0].tolist() == answer


# --- Which draw an element takes (rule R1) ------------------------------------------------------


def test_seed_zero_starts_with_the_known_answer():
    torch.npusim.manual_seed(0)
    drawn = torch.empty(2, dtype=torch.int64, device=DEV).random_(-(2**63), None).cpu().numpy()
    assert drawn.view(np.uint32).tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


@pytest.mark.parametrize("count", [1, 3, 4, 5, 255, 256, 257, 1000])
@pytest.mark.parametrize(("seed", "offset"), [(7, 0), (0xDEADBEEFCAFEF00D, 4), (1, 2**34 + 8)])
def test_elements_take_words_in_order(seed, offset, count):
    generator = torch.Generator(device=DEV).manual_seed(seed)

    def draw(dtype):
        generator.set_offset(offset)
        return torch.empty(count, dtype=dtype, device=DEV).random_(generator=generator).cpu()

    assert draw(torch.int32).numpy().tolist() == (words(seed, offset, count) % 2**31).tolist()
    assert draw(torch.int64).numpy().tolist() == (long_words(seed, offset, count) % 2**63).tolist()


def test_uniform_takes_the_upper_bits():
    generator = torch.Generator(device=DEV).manual_seed(11)
    drawn = torch.rand(999, device=DEV, generator=generator).cpu().numpy()
    assert (drawn == (words(11, 0, 999) >> np.uint64(8)).astype(np.float32) * 2.0**-24).all()
    drawn = torch.rand(999, device=DEV, generator=generator, dtype=torch.float64).cpu().numpy()
    assert (drawn == (long_words(11, 4, 999) >> np.uint64(11)).astype(np.float64) * 2.0**-53).all()


def box_muller(radius, turn):
    radius, angle = np.sqrt(-2 * np.log(radius)), 2 * np.pi * turn
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1).reshape(-1)


def test_normal_is_box_muller_on_pairs():
    count = 998
    generator = torch.Generator(device=DEV).manual_seed(12)
    drawn = torch.randn(count, device=DEV, generator=generator).cpu().numpy()
    pairs = words(12, 0, count).astype(np.float64).reshape(-1, 2)
    expected = box_muller((np.floor(pairs[:, 0] / 2) + 0.5) * 2.0**-31, pairs[:, 1] * 2.0**-32)
    np.testing.assert_allclose(drawn, expected, rtol=2e-5, atol=2e-5)
    drawn = torch.randn(count, device=DEV, generator=generator, dtype=torch.float64).cpu().numpy()
    pairs = long_words(12, 4, count).reshape(-1, 2)
    expected = box_muller(
        ((pairs[:, 0] >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52,
        (pairs[:, 1] >> np.uint64(11)).astype(np.float64) * 2.0**-53,
    )
    np.testing.assert_allclose(drawn, expected, rtol=1e-12, atol=1e-12)


def test_a_short_call_is_the_beginning_of_a_long_one():
    def draw(count):
        torch.npusim.manual_seed(5)
        return torch.randn(count, device=DEV).cpu()

    whole = draw(2000)
    for count in (1, 2, 7, 255, 256, 257, 1999):
        assert torch.equal(draw(count), whole[:count])


# --- Draws: one call of every operator ----------------------------------------------------------


def _out(shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device=DEV)


def _half(shape):
    return torch.full(shape, 0.5, device=DEV)


# name -> call(shape, generator). Own kernels first, then those that run CPU kernels.
OWN = {
    "uniform_": lambda s, g: _out(s).uniform_(-1, 3, generator=g),
    "uniform_ float64": lambda s, g: _out(s, torch.float64).uniform_(generator=g),
    "uniform_ complex": lambda s, g: _out(s, torch.complex64).uniform_(generator=g),
    "normal_": lambda s, g: _out(s).normal_(1, 2, generator=g),
    "normal_ float64": lambda s, g: _out(s, torch.float64).normal_(generator=g),
    "normal_ complex": lambda s, g: _out(s, torch.complex64).normal_(generator=g),
    "normal.Tensor_float": lambda s, g: torch.normal(_half(s), 2.0, generator=g),
    "normal.float_Tensor": lambda s, g: torch.normal(1.0, _half(s), generator=g),
    "normal.Tensor_Tensor": lambda s, g: torch.normal(_half(s), _half(s), generator=g),
    "normal.float_float": lambda s, g: torch.normal(0.0, 1.0, s, generator=g, device=DEV),
    "normal.Tensor_float_out": lambda s, g: torch.normal(_half(s), 2.0, generator=g, out=_out(s)),
    "normal.float_Tensor_out": lambda s, g: torch.normal(1.0, _half(s), generator=g, out=_out(s)),
    "normal.Tensor_Tensor_out": lambda s, g: torch.normal(
        _half(s), _half(s), generator=g, out=_out(s)
    ),
    "random_": lambda s, g: _out(s).random_(generator=g),
    "random_ int64": lambda s, g: _out(s, torch.int64).random_(generator=g),
    "random_.to": lambda s, g: _out(s, torch.int32).random_(100, generator=g),
    "random_.from": lambda s, g: _out(s, torch.int64).random_(-5, 2**40, generator=g),
    "random_.from all": lambda s, g: _out(s, torch.int64).random_(-(2**63), None, generator=g),
    "randint": lambda s, g: torch.randint(3, 9, s, generator=g, device=DEV),
    "bernoulli_.float": lambda s, g: _out(s).bernoulli_(0.3, generator=g),
    "bernoulli_.Tensor": lambda s, g: _out(s, torch.int8).bernoulli_(_half(s), generator=g),
    "bernoulli": lambda s, g: torch.bernoulli(_half(s), generator=g),
    "bernoulli.out": lambda s, g: torch.bernoulli(_half(s), generator=g, out=_out(s)),
    "bernoulli.p": lambda s, g: torch.bernoulli(_half(s), 0.25, generator=g),
    "exponential_": lambda s, g: _out(s).exponential_(2, generator=g),
    "cauchy_": lambda s, g: _out(s).cauchy_(generator=g),
    "geometric_": lambda s, g: _out(s, torch.int64).geometric_(0.2, generator=g),
    "log_normal_": lambda s, g: _out(s).log_normal_(0, 0.25, generator=g),
    "rand": lambda s, g: torch.rand(s, generator=g, device=DEV),
    "randn": lambda s, g: torch.randn(s, generator=g, device=DEV, dtype=torch.bfloat16),
    "randperm": lambda s, g: torch.randperm(math.prod(s), generator=g, device=DEV),
}
TAIL = {
    "poisson": lambda s, g: torch.poisson(10 * _half(s), generator=g),
    "binomial": lambda s, g: torch.binomial(40 * _half(s), _half(s), generator=g),
    "_standard_gamma": lambda s, g: torch._standard_gamma(4 * _half(s), generator=g),
    "_sample_dirichlet": lambda s, g: torch._sample_dirichlet(_half((*s, 3)), generator=g),
    "multinomial": lambda s, g: torch.multinomial(_half((math.prod(s), 6)), 2, generator=g),
    "multinomial replacement": lambda s, g: torch.multinomial(
        _half((math.prod(s), 6)), 9, replacement=True, generator=g
    ),
    "rrelu_with_noise": lambda s, g: torch._C._nn.rrelu_with_noise(
        -_half(s), _out(s), 0.1, 0.4, True, generator=g
    ),
    "rrelu_with_noise_": lambda s, g: torch._C._nn.rrelu_with_noise_(
        -_half(s), _out(s), 0.1, 0.4, True, generator=g
    ),
    "rrelu_with_noise.out": lambda s, g: torch._C._nn.rrelu_with_noise(
        -_half(s), _out(s), 0.1, 0.4, True, generator=g, out=_out(s)
    ),
}
DRAWS = OWN | TAIL


@pytest.fixture(params=DRAWS)
def draw(request):
    return DRAWS[request.param]


@pytest.fixture(params=OWN)
def own_draw(request):
    return OWN[request.param]


def test_a_seed_repeats_the_draw_and_another_does_not(draw):
    generator = torch.Generator(device=DEV).manual_seed(3)
    first = draw((50,), generator).cpu()
    again = draw((50,), generator).cpu()
    assert torch.equal(draw((50,), generator.manual_seed(3)).cpu(), first)
    assert torch.equal(draw((50,), generator).cpu(), again)
    assert not torch.equal(first, again)
    assert not torch.equal(draw((50,), generator.manual_seed(4)).cpu(), first)


def test_default_generator_and_a_generator_of_the_same_seed_agree(draw):
    torch.manual_seed(21)
    assert torch.equal(draw((50,), None), draw((50,), torch.Generator(DEV).manual_seed(21)))


def test_state_can_be_put_back(draw):
    torch.manual_seed(8)
    draw((3,), None)
    state = torch.npusim.get_rng_state()
    first = draw((50,), None).cpu()
    torch.npusim.set_rng_state(state)
    assert torch.equal(draw((50,), None).cpu(), first)


def test_drawing_leaves_the_cpu_generator_alone_and_is_not_led_by_it(draw):
    torch.manual_seed(9)
    host_state = torch.get_rng_state()
    first = draw((50,), None).cpu()
    assert torch.equal(torch.get_rng_state(), host_state)
    torch.npusim.manual_seed(9)
    torch.rand(7)  # moves the CPU generator only
    assert torch.equal(draw((50,), None).cpu(), first)


@pytest.mark.parametrize("shape", [(5,), (1, 7), (1000,), (2, 3, 4)])
def test_a_call_advances_the_offset_by_four(draw, shape):
    """Rule R2: by an amount that depends on the operator alone."""
    generator = torch.Generator(device=DEV).manual_seed(1)
    for call in (1, 2, 3):
        draw(shape, generator)
        assert generator.get_offset() == 4 * call


def test_an_empty_call_advances_the_offset_too(own_draw):
    """Rule R2: torch returns early for an empty tensor; the offsets are reserved all the same."""
    generator = torch.Generator(device=DEV).manual_seed(1)
    own_draw((0,), generator)
    assert generator.get_offset() == 4


def test_dropout_advances_the_offset_by_four_while_it_draws():
    """Rule R2."""
    for shape in [(0,), (5,), (1000,)]:
        torch.npusim.manual_seed(1)
        torch.native_dropout(torch.ones(shape, device=DEV), 0.5, True)
        assert torch.npusim.random._get_rng_state_offset() == 4
    torch.native_dropout(torch.ones(5, device=DEV), 0.5, False)
    assert torch.npusim.random._get_rng_state_offset() == 4


def test_a_generator_of_another_device_is_refused(draw):
    generator = torch.Generator(device="cpu")
    before = generator.get_state()
    with pytest.raises(RuntimeError, match="generator"):
        draw((5,), generator)
    assert torch.equal(generator.get_state(), before)


# --- Seeds and states ---------------------------------------------------------------------------


def test_torch_manual_seed_seeds_every_device():
    torch.manual_seed(1234)
    assert [g.initial_seed() for g in torch.npusim.default_generators] == [1234] * 2
    torch.npusim.manual_seed_all(99)
    assert [g.initial_seed() for g in torch.npusim.default_generators] == [99] * 2
    assert torch.initial_seed() == 1234


def test_state_is_seed_and_offset_in_sixteen_bytes():
    torch.npusim.manual_seed(0x0102030405060708)
    torch.rand(1, device=DEV)
    state = torch.npusim.get_rng_state()
    assert bytes(state.tolist()) == bytes([8, 7, 6, 5, 4, 3, 2, 1, 4, 0, 0, 0, 0, 0, 0, 0])


def test_a_failed_call_draws_nothing():
    generator = torch.Generator(device=DEV).manual_seed(1)
    with pytest.raises(NotImplementedError):
        _out((3,), torch.int32).normal_(generator=generator)
    with pytest.raises(RuntimeError):
        _out((3,)).exponential_(-1, generator=generator)
    assert generator.get_offset() == 0


# --- Strides and threads (rule R1) --------------------------------------------------------------

IN_PLACE = {
    "uniform_": lambda t: t.uniform_(),
    "normal_": lambda t: t.normal_(),
    "random_": lambda t: t.random_(50),
    "bernoulli_": lambda t: t.bernoulli_(0.5),
    "bernoulli_.Tensor": lambda t: t.bernoulli_(
        torch.linspace(0, 1, t.numel(), device=t.device).view(t.shape)
    ),
    "exponential_": lambda t: t.exponential_(),
    "cauchy_": lambda t: t.cauchy_(),
    "geometric_": lambda t: t.geometric_(0.1),
    "log_normal_": lambda t: t.log_normal_(),
}


def _layouts(shape):
    n, c, h, w = shape
    yield torch.empty(shape, device=DEV, memory_format=torch.channels_last)
    yield torch.empty((w, h, c, n), device=DEV).permute(3, 2, 1, 0)
    yield torch.empty((n, c, h, 2 * w), device=DEV)[..., ::2]
    yield torch.empty((n, c + 3, h, w), device=DEV)[:, 2:-1]
    yield torch.empty(n * c * h * w + 1, device=DEV)[1:].view(shape)


@pytest.mark.parametrize("name", IN_PLACE)
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (3, 5, 17, 19), (1, 1, 1, 1)])
def test_values_do_not_depend_on_strides(name, shape):
    torch.npusim.manual_seed(3)
    expected = IN_PLACE[name](torch.empty(shape, device=DEV)).cpu()
    for tensor in _layouts(shape):
        torch.npusim.manual_seed(3)
        assert torch.equal(IN_PLACE[name](tensor).cpu(), expected)


def test_dropout_does_not_depend_on_strides():
    shape = (3, 5, 17, 19)
    torch.npusim.manual_seed(3)
    expected = torch.nn.functional.dropout(torch.ones(shape, device=DEV), 0.3).cpu()
    for tensor in _layouts(shape):
        torch.npusim.manual_seed(3)
        assert torch.equal(torch.nn.functional.dropout(tensor.fill_(1), 0.3).cpu(), expected)


@pytest.mark.parametrize("name", IN_PLACE)
def test_a_view_is_filled_and_nothing_else(name):
    base = torch.full((40, 30), -7.0, device=DEV)
    IN_PLACE[name](base[3:20:2, 5:25])
    untouched = base.cpu()
    assert (untouched[3:20:2, 5:25] != -7).all()
    untouched[3:20:2, 5:25] = -7
    assert (untouched == -7).all()


def test_values_do_not_depend_on_the_number_of_threads(own_draw):
    drawn = []
    for count in (1, 2):
        torch.set_num_threads(count)
        drawn.append(own_draw((150_001,), torch.Generator(DEV).manual_seed(6)).cpu())
    assert torch.equal(*drawn)


def test_out_of_another_size_is_resized():
    out = torch.empty(0, device=DEV)
    torch.bernoulli(_half((30, 4)), out=out)
    assert out.shape == (30, 4)
    numbers = torch.empty(0, dtype=torch.int64, device=DEV)
    torch.randperm(12, out=numbers)
    assert sorted(numbers.tolist()) == list(range(12))


@pytest.mark.parametrize("name", IN_PLACE)
def test_strict_alignment_leaves_the_values_as_they_are(name):
    """Rule A2: a copied operand is counted, and written back."""
    torch.npusim.manual_seed(3)
    expected = IN_PLACE[name](torch.empty(99, device=DEV)).cpu()
    base = torch.full((101,), -7.0, device=DEV)
    torch.npusim.manual_seed(3)
    before = alignment.realigned_operands()
    with alignment.use_mode("copy"):
        IN_PLACE[name](base[1:-1])
    assert alignment.realigned_operands() > before
    assert torch.equal(base[1:-1].cpu(), expected)
    assert base[[0, -1]].tolist() == [-7, -7]
    with alignment.use_mode("error"), pytest.raises(RuntimeError, match="boundary"):
        IN_PLACE[name](base[1:-1])
