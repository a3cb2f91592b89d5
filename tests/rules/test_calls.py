# SPDX-License-Identifier: BSD-3-Clause
"""Single calls under the rules: refusals in CUDA's words, alerts, wider dtypes, indices."""

import warnings

import pytest
import torch
from processes import python
from torch.nn import functional as F

from torch_npusim.sim import faults, rules

NPU = torch.device("npusim")
TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])


def of(dtype, *shape):
    return torch.ones(shape or (4, 4), dtype=dtype, device=NPU)


INTEGERS = torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64
REFUSED = {
    "mm": (lambda x: x @ x, INTEGERS, "addmm_cuda"),
    "addmm": (lambda x: torch.addmm(x, x, x), INTEGERS, "addmm_cuda"),
    "addmm_": (lambda x: x.addmm_(x.clone(), x.clone()), INTEGERS, "addmm_cuda"),
    "mm.out": (lambda x: torch.mm(x, x, out=torch.empty_like(x)), INTEGERS, "addmm_cuda"),
    "bmm": (lambda x: torch.bmm(x[None], x[None]), INTEGERS, "baddbmm_cuda"),
    "einsum": (lambda x: torch.einsum("bij,bjk->bik", x[None], x[None]), INTEGERS, "baddbmm_cuda"),
    "linear": (lambda x: F.linear(x, x), INTEGERS, "addmm_cuda"),
    "mv": (lambda x: x @ x[0], INTEGERS, "addmv_impl_cuda"),
    "dot": (lambda x: x[0] @ x[0], INTEGERS, "dot"),
    "vdot": (lambda x: torch.vdot(x[0], x[0]), INTEGERS, "dot"),
    "max_pool2d": (
        lambda x: F.max_pool2d(x[None], 2),
        INTEGERS,
        "max_pool2d_with_indices_out_cuda_frame",
    ),
    "max_pool3d": (
        lambda x: F.max_pool3d(x[None, None], (1, 2, 2)),
        INTEGERS,
        "max_pool3d_with_indices_out_frame",
    ),
    "avg_pool2d": (lambda x: F.avg_pool2d(x[None], 2), [torch.int64], "avg_pool2d_out_cuda_frame"),
    "bilinear": (
        lambda x: F.interpolate(x[None, None], size=8, mode="bilinear"),
        [torch.uint8],
        "upsample_bilinear2d_out_frame",
    ),
    "igamma": (lambda x: torch.igamma(x, x), [torch.half, torch.bfloat16], "igamma_cuda"),
    "angle": (lambda x: x.angle(), [torch.half, torch.bfloat16], "angle_cuda"),
    "histc": (lambda x: x.histc(), [torch.bfloat16], "histc"),
    "scatter_reduce": (
        lambda x: x[0].scatter_reduce(0, of(torch.long, 4), x[0], "amax"),
        [torch.bool],
        "cuda_scatter_gather_base_kernel_func",
    ),
}
if not any(rule.operator == "aten::angle" and rule.verdict == "refuse" for rule in rules.rows()):
    del REFUSED["angle"]
CASES = [(name, dtype) for name, (_, dtypes, _) in REFUSED.items() for dtype in dtypes]
WORDS = {"uint8": "Byte", "int8": "Char", "int16": "Short", "int32": "Int", "int64": "Long"}
WORDS |= {"float16": "Half", "bfloat16": "BFloat16", "bool": "Bool"}


@pytest.mark.parametrize(("name", "dtype"), CASES, ids=str)
def test_a_dtype_that_cuda_lacks_is_refused_in_its_words(name, dtype):
    call, _, kernel = REFUSED[name]
    text = f"\"{kernel}\" not implemented for '{WORDS[str(dtype)[6:]]}'"
    with pytest.raises(NotImplementedError) as caught:
        call(of(dtype))
    assert str(caught.value).startswith(text)
    assert "NPUSIM_RULES=cuda" in str(caught.value)


@pytest.mark.parametrize("name", [name for name in REFUSED if name != "scatter_reduce"])
def test_float32_is_not(name):
    REFUSED[name][0](of(torch.float32))


def test_a_convolution_of_integers_is_refused_as_cudnn_does():
    x = of(torch.int64, 1, 1, 4, 4)
    with pytest.raises(
        RuntimeError, match=r"^getCudnnDataTypeFromScalarType\(\) not supported for"
    ):
        F.conv2d(x, x)


def test_what_launches_nothing_is_not_refused():
    empty = torch.empty(0, 4, dtype=torch.int64, device=NPU)
    assert (empty @ empty.T).shape == (0, 0)
    pixels = of(torch.uint8, 1, 1, 4, 4)
    assert torch.equal(F.interpolate(pixels, size=4, mode="bilinear"), pixels)


def test_an_empty_place_for_the_result_is_no_empty_operand():
    x, out = of(torch.int64), torch.empty(0, dtype=torch.int64, device=NPU)
    with pytest.raises(NotImplementedError, match="addmm_cuda"):
        torch.mm(x, x, out=out)
    with pytest.raises(NotImplementedError, match="max_pool2d_with_indices_out_cuda_frame"):
        torch.ops.aten.max_pool2d_with_indices.out(x[None], [2], out=out, indices=out.clone())


def test_without_the_rules_everything_runs():
    assert torch.npusim.set_rules("off") == "cuda"
    assert torch.npusim.get_rules() == "off"
    x = of(torch.int64)
    assert (x @ x).eq(4).all()
    torch.npusim.set_rules("cuda")
    with pytest.raises(NotImplementedError):
        x @ x


def test_a_wrong_book_is_named():
    with pytest.raises(ValueError, match="'auto', 'off' or 'cuda'; got 'rocm'"):
        torch.npusim.set_rules("rocm")


def backward(call):
    def run(x):
        call(x.requires_grad_()).sum().backward()

    return run


ALERTS = {
    "adaptive_avg_pool2d_backward_cuda": backward(lambda x: F.adaptive_avg_pool2d(x[None], 2)),
    "adaptive_avg_pool3d_backward_cuda": backward(
        lambda x: F.adaptive_avg_pool3d(x[None, None], (1, 2, 2))
    ),
    "adaptive_max_pool2d_backward_cuda": backward(lambda x: F.adaptive_max_pool2d(x[None], 2)),
    "avg_pool3d_backward_cuda": backward(lambda x: F.avg_pool3d(x[None, None], (1, 2, 2))),
    "max_pool3d_with_indices_backward_cuda": backward(
        lambda x: torch.ops.aten.max_pool3d_with_indices(x[None, None], (1, 2, 2))[0]
    ),
    "upsample_linear1d_backward_out_cuda": backward(
        lambda x: F.interpolate(x[None], size=8, mode="linear")
    ),
    "upsample_bicubic2d_backward_out_cuda": backward(
        lambda x: torch.ops.aten.upsample_bicubic2d(x[None, None], [8, 8], False)
    ),
    "upsample_bilinear2d_backward_out_cuda": backward(
        lambda x: torch.ops.aten.upsample_bilinear2d(x[None, None], [8, 8], False)
    ),
    "reflection_pad1d_backward_out_cuda": backward(lambda x: F.pad(x, (1, 1), mode="reflect")),
    "reflection_pad3d_backward_out_cuda": backward(
        lambda x: F.pad(x.expand(1, 1, 4, 4, 4), (1,) * 6, mode="reflect")
    ),
    "nll_loss2d_forward_out_cuda_template": lambda x: F.nll_loss(
        x[None, None], of(torch.long, 1, 4, 4) - 1
    ),
    "embedding_bag_backward_cuda_max": backward(
        lambda x: F.embedding_bag(of(torch.long, 2, 2), x, mode="max")
    ),
    "_histc_cuda with floating point input": lambda x: x.histc(4, 0, 2),
    "_bincount_cuda": lambda x: torch.bincount(x[0].long(), weights=x[0]),
    "median CUDA with indices output": lambda x: x.median(0),
    "grid_sampler_2d_backward_cuda": backward(
        lambda x: F.grid_sample(x[None, None], of(torch.float32, 1, 2, 2, 2), align_corners=False)
    ),
    "index_reduce_cuda": lambda x: x.index_reduce_(0, of(torch.long, 4), x.clone(), "prod"),
    "scatter_reduce_cuda_prod_": lambda x: x.scatter_reduce(0, of(torch.long), x, "prod"),
    "max_unpooling2d_forward_out": lambda x: F.max_unpool2d(
        x[None], torch.arange(16, device=NPU).view(1, 4, 4), 2
    ),
    "put_": lambda x: x.put_(of(torch.long, 2), of(torch.float32, 2)),
}


@pytest.mark.parametrize("name", ALERTS)
def test_what_is_not_deterministic_on_cuda_raises_if_it_must_be(name):
    ALERTS[name](of(torch.float32))
    torch.use_deterministic_algorithms(True)
    with pytest.raises(RuntimeError, match=f"^{name} does not have a deterministic implementation"):
        ALERTS[name](of(torch.float32))


def test_an_alert_may_be_a_warning():
    torch.use_deterministic_algorithms(True, warn_only=True)
    with pytest.warns(UserWarning, match="_histc_cuda with floating point input does not have"):
        of(torch.float32).histc(4, 0, 2)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.cumsum(0),  # torch 2.13 has a deterministic form of it
        lambda x: x.kthvalue(1),
        lambda x: torch.bincount(x[0].long()),
        lambda x: x.long().histc(4, 0, 2),
        lambda x: x.median(),
        lambda x: x.scatter_reduce(0, of(torch.long), x, "sum"),
        lambda x: F.nll_loss(x[None, None], of(torch.long, 1, 4, 4) - 1, reduction="none"),
        backward(lambda x: F.embedding_bag(of(torch.long, 2, 2), x, mode="sum")),
        backward(lambda x: F.interpolate(x[None, None], size=8, mode="bilinear")),
    ],
)
def test_what_is_deterministic_on_cuda_runs(call):
    torch.use_deterministic_algorithms(True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call(of(torch.float32))


def test_half_transforms_run_in_float32_and_say_so():
    before = rules.widened_calls().get("aten::fft_fft", 0)
    x = torch.arange(8, device=NPU).half().requires_grad_()
    result = torch.fft.fft(x)
    assert result.dtype == torch.complex32
    assert rules.widened_calls()["aten::fft_fft"] == before + 1
    expected = torch.fft.fft(torch.arange(8.0))
    torch.testing.assert_close(result.to(torch.complex64).cpu(), expected, rtol=1e-3, atol=1e-2)
    torch.view_as_real(result.to(torch.complex64)).sum().backward()
    assert x.grad.dtype == torch.half
    torch.npusim.set_rules("off")
    with pytest.raises(RuntimeError, match="Unsupported dtype Half"):
        torch.fft.fft(x)


def test_half_transforms_of_other_sizes_are_refused_as_cufft_does():
    for size in (6, 12):
        with pytest.raises(RuntimeError, match=rf"powers of two.*signal size of\[{size}\]"):
            torch.fft.rfft(of(torch.half, size))
    torch.fft.rfft(of(torch.half, 6), n=8)


TRANSFORMS = {
    "fft": torch.complex64,
    "ifft2": torch.complex64,
    "rfftn": torch.complex64,
    "irfft": torch.float32,
    "hfft": torch.float32,
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_bfloat16_is_transformed_in_float32_if_this_torch_has_it(name):
    """torch.fft's meta kernels give the dtypes too."""
    x = torch.randn(6, 6).bfloat16()
    transform = getattr(torch.fft, name)
    if TORCH < (2, 14):
        with pytest.raises(RuntimeError, match="Unsupported dtype BFloat16"):
            transform(x.to(NPU))
        return
    operand = x.to(NPU).requires_grad_()
    result = transform(operand)
    assert result.dtype == TRANSFORMS[name] == transform(x.to("meta")).dtype
    assert torch.equal(result.cpu(), transform(x.float()))
    result.abs().sum().backward()
    assert operand.grad.dtype == torch.bfloat16


def test_stft_of_half():
    window = torch.hann_window(16, device=NPU).half()
    result = torch.stft(of(torch.half, 64), 16, window=window, return_complex=True)
    assert result.dtype == torch.complex32


def test_results_that_are_written_keep_their_place():
    x, out = of(torch.half, 1, 2, 2, 2), torch.empty(0, dtype=torch.half, device=NPU)
    pooled = torch._C._nn.avg_pool3d(x, (2, 2, 2), out=out)
    assert pooled is out
    assert pooled.dtype == torch.half
    assert pooled.flatten().tolist() == [1.0]


def test_nansum_of_complex_numbers():
    x = torch.tensor([1 + 1j, complex("nan"), 2j], device=NPU)
    assert x.nansum().item() == 1 + 3j


OUT_OF_RANGE = {
    "embedding": lambda: F.embedding(torch.tensor([9], device=NPU), of(torch.float32)),
    "index": lambda: of(torch.float32)[torch.tensor([9], device=NPU)],
    "gather": lambda: of(torch.float32, 4).gather(0, torch.tensor([9], device=NPU)),
    "index_select": lambda: of(torch.float32).index_select(0, torch.tensor([9], device=NPU)),
    "scatter_": lambda: of(torch.float32, 4).scatter_(0, torch.tensor([9], device=NPU), 1.0),
    "nll_loss": lambda: F.nll_loss(of(torch.float32), torch.full((4,), 9, device=NPU)),
    "index_put_": lambda: of(torch.float32).__setitem__(torch.tensor([9], device=NPU), 1.0),
    "index_fill_": lambda: of(torch.float32).index_fill_(0, torch.tensor([9], device=NPU), 1.0),
    "put_": lambda: of(torch.float32).put_(torch.tensor([99], device=NPU), of(torch.float32, 1)),
    "embedding_bag": lambda: F.embedding_bag(torch.tensor([[9]], device=NPU), of(torch.float32)),
    "max_unpool2d": lambda: F.max_unpool2d(
        of(torch.float32)[None], torch.full((1, 4, 4), 999, device=NPU), 2
    ),
    "binary_cross_entropy": lambda: F.binary_cross_entropy(
        of(torch.float32) * 3, of(torch.float32)
    ),
    "bernoulli": lambda: torch.bernoulli(of(torch.float32) * 3),
    "masked_scatter": lambda: of(torch.float32, 4).masked_scatter(
        of(torch.bool, 4), of(torch.float32, 2)
    ),
    "_assert_async": lambda: torch._assert_async(torch.zeros((), device=NPU)),
    "_assert_async.msg": lambda: torch._assert_async(torch.zeros((), device=NPU), "not one"),
}


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_an_index_out_of_range_raises_what_cuda_raises(name):
    text = r"^CUDA error: device-side assert triggered\naten::\w+: [\s\S]*On CUDA this is"
    with pytest.raises(torch.AcceleratorError, match=text) as caught:
        OUT_OF_RANGE[name]()
    assert caught.value.error_code == 710
    assert (of(torch.float32) + 1).eq(2).all()  # not late: the device is as it was


def test_what_the_host_checks_is_no_device_assert():
    one = torch.tensor([0], device=NPU)
    with pytest.raises(IndexError, match="Dimension out of range"):
        of(torch.float32).index_select(5, one)
    with pytest.raises(IndexError, match="Dimension out of range"):
        of(torch.float32).index_fill_(5, one, 1.0)
    with pytest.raises(IndexError, match="index 9 is out of bounds"):
        of(torch.float32)[9]
    with pytest.raises(IndexError, match="index is out of bounds for dimension with size 0"):
        of(torch.float32)[:, :0][:, one]


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_an_index_out_of_range_may_be_late_and_stick(name):
    rules.set_device_assert("late")
    OUT_OF_RANGE[name]()
    for _ in range(2):
        with pytest.raises(torch.AcceleratorError, match="device-side assert triggered"):
            torch.npusim.synchronize()
    with pytest.raises(torch.AcceleratorError, match="device-side assert triggered"):
        of(torch.float32) + 1
    faults.clear()
    assert (of(torch.float32) + 1).eq(2).all()


PROGRAM = """
import torch
print(torch.npusim.get_rules())
import torch_npusim.as_cuda as alias
print(torch.npusim.get_rules())
alias.disable()
print(torch.npusim.get_rules())
"""


@pytest.mark.parametrize(
    ("value", "expected"),
    [("auto", "off cuda off"), ("off", "off off off"), ("cuda", "cuda cuda cuda")],
)
def test_the_variable_says_when(value, expected, monkeypatch):
    monkeypatch.setenv("NPUSIM_RULES", value)
    monkeypatch.delenv("NPUSIM_AS_CUDA", raising=False)
    done = python("-c", PROGRAM, check=True)
    assert done.stdout.split() == expected.split()


@pytest.mark.parametrize(
    ("rows", "columns", "text"),
    [
        (16, 16, r"self\.size\(0\) needs to be greater than 16, but got 16"),
        (32, 12, r"self\.size\(1\) needs to be greater than 0 and a multiple of 8, but got 12"),
    ],
)
def test_products_of_bytes_have_sizes_that_cublas_takes(rows, columns, text):
    with pytest.raises(RuntimeError, match=rf"^{text}\naten::_int_mm takes this on the CPU"):
        torch._int_mm(of(torch.int8, rows, columns), of(torch.int8, columns, 8))
    assert torch._int_mm(of(torch.int8, 32, 16), of(torch.int8, 16, 8)).eq(16).all()


@pytest.mark.parametrize("dtype", [torch.bool, torch.complex64])
@pytest.mark.parametrize(
    ("is_number", "text"),
    [
        (False, "cuda_scatter_gather_base_kernel_func"),
        (True, "cuda_scatter_fill_base_kernel_reduce_multiply"),
    ],
)
def test_a_product_that_is_scattered_is_of_numbers_with_an_order(dtype, is_number, text):
    index = of(torch.long, 2)
    x = of(dtype, 3)
    value = 1 if is_number else of(dtype, 2)
    with pytest.raises(NotImplementedError, match=f'^"{text}" not implemented for'):
        x.scatter_(0, index, value, reduce="multiply")
    assert x.eq(1).all()
    assert x.float().scatter_(0, index, 2 * of(torch.float32, 2), reduce="multiply")[1] == 4


def test_least_squares_have_one_driver():
    a, b = torch.eye(3, device=NPU), of(torch.float32, 3, 2)
    for driver in ("gelsy", "gelsd", "gelss"):
        with pytest.raises(
            RuntimeError, match=r"^torch\.linalg\.lstsq: `driver` other than `gels`"
        ):
            torch.linalg.lstsq(a, b, driver=driver)
    found = torch.linalg.lstsq(a, b, driver="gels")
    assert found.solution.eq(1).all()
    without = torch.linalg.lstsq(a, b)
    assert without.rank.shape == without.singular_values.shape == (0,)


def test_put_that_accumulates_alerts_too():
    torch.use_deterministic_algorithms(True)
    with pytest.raises(RuntimeError, match=r"^put_ does not have a deterministic"):
        of(torch.float32).put_(of(torch.long, 2), of(torch.float32, 2), accumulate=True)


@pytest.mark.parametrize("place", ["result", "divisor"])
def test_a_quotient_by_zero_keeps_its_operands_until_it_is_made(place):
    dividend = torch.arange(1000, 201_000, device=NPU)  # more than one piece of the kernel
    divisor = torch.full_like(dividend, 3)
    divisor[torch.tensor([5, -1])] = 0
    zeros = divisor.cpu() == 0
    expected = torch.where(zeros, -1, dividend.cpu() // 3)
    out = dividend if place == "result" else divisor
    torch.floor_divide(dividend, divisor, out=out)
    assert torch.equal(out.cpu(), expected)


IN_PLACE = {
    "floor_divide_": lambda x, y: x.floor_divide_(y),
    "remainder_": lambda x, y: x.remainder_(y),
    "fmod_": lambda x, y: x.fmod_(y),
    "div_ floor": lambda x, y: x.div_(y, rounding_mode="floor"),
    "div_ trunc": lambda x, y: x.div_(y, rounding_mode="trunc"),
}


@pytest.mark.parametrize("name", IN_PLACE)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32])
def test_a_quotient_by_zero_in_place_is_no_error(name, dtype):
    start = torch.arange(200_000).to(dtype)
    divisor = torch.full_like(start, 3)
    divisor[torch.tensor([5, -1])] = 0
    zeros = divisor == 0
    expected = IN_PLACE[name](start.clone(), divisor.masked_fill(zeros, 1)).masked_fill(zeros, -1)
    found = IN_PLACE[name](start.to(NPU), divisor.to(NPU))
    assert torch.equal(found.cpu(), expected)
    assert IN_PLACE[name](of(dtype, 3), 0).eq(of(dtype, 3).zero_() - 1).all()
    itself = start.to(NPU)
    of_itself = IN_PLACE[name](itself, itself).cpu()
    assert torch.equal(of_itself == torch.tensor(-1).to(dtype), start == 0)


@pytest.mark.parametrize("name", ["remainder_", "fmod_", "remainder", "fmod"])
def test_remainders_of_int64_by_zero_are_those_that_torch_tests_on_gpus(name):
    x = torch.tensor([-5, 0, 7], device=NPU)
    for divisor in (0, torch.zeros_like(x)):
        assert getattr(x.clone(), name)(divisor).tolist() == [-1, (1 << 32) - 1, (1 << 32) - 1]


def test_a_quotient_of_bool_and_integers_by_zero_is_no_error():
    zeros = torch.zeros(2, dtype=torch.int32, device=NPU)
    for dividend in (of(torch.bool, 2), True):
        assert (dividend // zeros).tolist() == torch.remainder(dividend, zeros).tolist() == [-1] * 2


def test_the_remainder_of_a_number_by_zero_is_no_error():
    assert (7 % torch.zeros(2, dtype=torch.int64, device=NPU)).tolist() == [(1 << 32) - 1] * 2
    assert (7 % torch.zeros(2, dtype=torch.int32, device=NPU)).tolist() == [-1] * 2
