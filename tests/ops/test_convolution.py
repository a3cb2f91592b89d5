# SPDX-License-Identifier: BSD-3-Clause
"""Convolutions on npusim are the CPU's bit for bit: forward, backward, double backward."""

import itertools

import pytest
import torch
import torch.nn.functional as F

import torch_npusim  # noqa: F401  (for where autoload has stepped back)

DEV = "npusim"

# name -> (function, input shape, weight shape, keyword arguments)
CASES = {
    "1d": (F.conv1d, (2, 3, 17), (4, 3, 3), {"padding": 1}),
    "2d": (F.conv2d, (2, 3, 9, 8), (4, 3, 3, 3), {"padding": 1}),
    "2d large": (F.conv2d, (16, 8, 32, 32), (16, 8, 5, 5), {"stride": 2}),
    "2d pointwise": (F.conv2d, (3, 8, 5, 5), (16, 8, 1, 1), {}),
    "2d dilated": (F.conv2d, (2, 4, 15, 15), (4, 4, 3, 3), {"dilation": 2, "padding": (2, 1)}),
    "2d grouped": (F.conv2d, (2, 6, 7, 7), (9, 2, 3, 3), {"groups": 3}),
    "2d depthwise": (F.conv2d, (2, 8, 9, 9), (8, 1, 3, 3), {"groups": 8, "padding": 1}),
    "2d same": (F.conv2d, (2, 3, 9, 9), (4, 3, 4, 4), {"padding": "same"}),
    "2d empty batch": (F.conv2d, (0, 3, 9, 8), (4, 3, 3, 3), {}),
    "2d unbatched": (F.conv2d, (3, 9, 8), (4, 3, 3, 3), {}),
    "3d": (F.conv3d, (2, 3, 5, 6, 7), (4, 3, 3, 3, 3), {"padding": 1}),
    "3d dilated": (F.conv3d, (1, 2, 9, 9, 9), (3, 2, 3, 3, 3), {"dilation": 2}),
    "1d transposed": (F.conv_transpose1d, (2, 4, 9), (4, 3, 3), {"stride": 2}),
    "2d transposed": (
        F.conv_transpose2d,
        (2, 4, 7, 7),
        (4, 3, 3, 3),
        {"stride": 2, "padding": 1, "output_padding": 1},
    ),
    "2d transposed grouped": (F.conv_transpose2d, (2, 4, 7, 7), (4, 3, 3, 3), {"groups": 2}),
    "3d transposed": (F.conv_transpose3d, (1, 2, 4, 4, 4), (2, 3, 3, 3, 3), {"dilation": 2}),
}
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def operands(input_shape, weight_shape, out_channels, dtype, layout=torch.contiguous_format):
    generator = torch.Generator().manual_seed(1)
    made = [
        torch.randn(shape, generator=generator).to(dtype)
        for shape in (input_shape, weight_shape, (out_channels,))
    ]
    if layout != torch.contiguous_format and made[0].dim() == made[1].dim():
        made[:2] = [tensor.to(memory_format=layout) for tensor in made[:2]]
    return made


def out_channels(function, weight_shape, kwargs):
    if "transpose" in function.__name__:
        return weight_shape[1] * kwargs.get("groups", 1)
    return weight_shape[0]


def results(device, function, tensors, kwargs, backward=True):
    leaves = [tensor.detach().to(device).requires_grad_(backward) for tensor in tensors]
    out = function(*leaves, **kwargs)
    if not backward:
        return [out]
    weights = torch.arange(out.numel(), dtype=torch.float32).reshape(out.shape).cos()
    out.backward(weights.to(out.dtype).to(device))
    return [out, *(leaf.grad for leaf in leaves)]


def assert_same(on_cpu, on_device):
    for expected, got in zip(on_cpu, on_device, strict=True):
        if expected is None:  # an empty batch gives no gradient to what it did not use
            assert got is None
            continue
        assert got.device.type == DEV
        assert got.shape == expected.shape
        assert got.stride() == expected.stride()
        assert torch.equal(got.cpu(), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_forward_and_backward(name, dtype):
    function, input_shape, weight_shape, kwargs = CASES[name]
    channels = out_channels(function, weight_shape, kwargs)
    tensors = operands(input_shape, weight_shape, channels, dtype)
    assert_same(results("cpu", function, tensors, kwargs), results(DEV, function, tensors, kwargs))


@pytest.mark.parametrize("name", CASES)
def test_without_gradients(name):
    function, input_shape, weight_shape, kwargs = CASES[name]
    channels = out_channels(function, weight_shape, kwargs)
    tensors = operands(input_shape, weight_shape, channels, torch.float32)
    with torch.no_grad():
        expected = results("cpu", function, tensors, kwargs, backward=False)
        assert_same(expected, results(DEV, function, tensors, kwargs, backward=False))


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("1d")])
def test_channels_last(name):
    function, input_shape, weight_shape, kwargs = CASES[name]
    layout = torch.channels_last_3d if name.startswith("3d") else torch.channels_last
    channels = out_channels(function, weight_shape, kwargs)
    tensors = operands(input_shape, weight_shape, channels, torch.float32, layout)
    assert_same(results("cpu", function, tensors, kwargs), results(DEV, function, tensors, kwargs))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("mkldnn", [True, False])
def test_threads_and_libraries(threads, mkldnn):
    function, input_shape, weight_shape, kwargs = CASES["2d large"]
    tensors = operands(input_shape, weight_shape, weight_shape[0], torch.float32)
    torch.set_num_threads(threads)
    with torch.backends.mkldnn.flags(enabled=mkldnn):
        expected = results("cpu", function, tensors, kwargs)
        got = results(DEV, function, tensors, kwargs)
    assert_same(expected, got)


def test_strided_operands():
    function, input_shape, weight_shape, kwargs = CASES["2d"]
    tensors = operands(input_shape, weight_shape, weight_shape[0], torch.float32)

    def run(device):
        tensors_here = [tensor.to(device) for tensor in tensors]
        tensors_here[0] = tensors_here[0].transpose(2, 3)
        tensors_here[1] = tensors_here[1].flip(0)[::1].transpose(2, 3)
        return [function(*tensors_here, **kwargs)]

    assert_same(run("cpu"), run(DEV))


@pytest.mark.parametrize("mask", list(itertools.product([True, False], repeat=3)))
def test_output_mask(mask):
    _, input_shape, weight_shape, _ = CASES["2d"]
    input_, weight, _ = operands(input_shape, weight_shape, 4, torch.float32)
    grad = F.conv2d(input_, weight).cos()
    geometry = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)

    def run(device):
        moved = [tensor.to(device) for tensor in (grad, input_, weight)]
        return torch.ops.aten.convolution_backward(*moved, [4], *geometry, list(mask))

    for expected, got, wanted in zip(run("cpu"), run(DEV), mask, strict=True):
        assert (got is None) == (expected is None)
        if wanted:
            assert torch.equal(got.cpu(), expected)


@pytest.mark.parametrize("name", ["1d", "2d", "2d grouped", "2d transposed", "3d"])
def test_double_backward(name):
    function, input_shape, weight_shape, kwargs = CASES[name]
    channels = out_channels(function, weight_shape, kwargs)
    tensors = operands(input_shape, weight_shape, channels, torch.float64)

    def run(device):
        leaves = [tensor.detach().to(device).requires_grad_() for tensor in tensors]
        out = function(*leaves, **kwargs).sin().sum()
        first = torch.autograd.grad(out, leaves, create_graph=True)
        second = torch.autograd.grad(sum(grad.square().sum() for grad in first), leaves)
        return [*first, *second]

    assert_same(run("cpu"), run(DEV))


def test_overrideable_pair():
    _, input_shape, weight_shape, _ = CASES["2d"]
    input_, weight, bias = operands(input_shape, weight_shape, 4, torch.float32)
    geometry = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    expected = torch.ops.aten.convolution(input_, weight, bias, *geometry)
    moved = [tensor.to(DEV) for tensor in (input_, weight, bias)]
    got = torch.ops.aten.convolution_overrideable(*moved, *geometry)
    assert torch.equal(got.cpu(), expected)
    assert torch.equal(torch.ops.aten._convolution(*moved, *geometry, *[False] * 4).cpu(), expected)
    grads = torch.ops.aten.convolution_backward(
        expected, input_, weight, [4], *geometry, [True] * 3
    )
    device_grads = torch.ops.aten.convolution_backward_overrideable(
        got, *moved[:2], *geometry, [True] * 3
    )
    for expected_grad, got_grad in zip(grads, device_grads, strict=True):
        assert torch.equal(got_grad.cpu(), expected_grad)


def test_complex():
    tensors = operands((2, 3, 6, 6), (4, 3, 3, 3), 4, torch.complex64)
    assert_same(results("cpu", F.conv2d, tensors, {}), results(DEV, F.conv2d, tensors, {}))


def test_errors_are_the_cpu_ones():
    input_, weight = torch.randn(2, 3, 8, 8), torch.randn(4, 5, 3, 3)
    with pytest.raises(RuntimeError, match=r"expected input.* to have 5 channels, but got 3"):
        F.conv2d(input_.to(DEV), weight.to(DEV))
    with pytest.raises(RuntimeError, match="same device"):
        F.conv2d(input_.to(DEV), weight)
    with pytest.raises(RuntimeError, match=r"[Kk]ernel size can't be greater"):
        F.conv2d(input_[:, :, :2].to(DEV), weight[:, :3].to(DEV))


def test_cost_counts_two_operations_per_multiply_add():
    input_ = torch.zeros(8, 64, 32, 32, device=DEV)
    small, large = (torch.zeros(out, 64, 3, 3, device=DEV) for out in (64, 256))

    def duration(weight):
        start, end = (torch.npusim.Event(enable_timing=True) for _ in range(2))
        start.record()
        F.conv2d(input_, weight)
        end.record()
        end.synchronize()
        return start.elapsed_time(end)

    assert duration(large) > 2 * duration(small)
