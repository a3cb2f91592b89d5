# SPDX-License-Identifier: BSD-3-Clause
"""Convolutions on npusim are the CPU's bit for bit: forward, backward, double backward."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from oracle import DEVICE, assert_same, compare

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


def operands(name, dtype=torch.float32, layout=torch.contiguous_format):
    """Input, weight and bias, leaves of autograd."""
    function, input_shape, weight_shape, kwargs = CASES[name]
    channels = weight_shape[0]
    if "transpose" in function.__name__:
        channels = weight_shape[1] * kwargs.get("groups", 1)
    generator = torch.Generator().manual_seed(1)
    made = [
        torch.randn(shape, generator=generator).to(dtype)
        for shape in (input_shape, weight_shape, (channels,))
    ]
    if layout != torch.contiguous_format and made[0].dim() == made[1].dim():
        made[:2] = [tensor.to(memory_format=layout) for tensor in made[:2]]
    return [tensor.requires_grad_() for tensor in made]


def convolved(name):
    """A convolution, with something of its result whose gradient is not the same everywhere."""
    function, _, _, kwargs = CASES[name]

    def run(*tensors):
        result = function(*tensors, **kwargs)
        return result, result.sin()

    return run


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_forward_and_backward(name, dtype):
    compare(convolved(name), *operands(name, dtype), backward=True)


@pytest.mark.parametrize("name", CASES)
def test_without_gradients(name):
    with torch.no_grad():
        compare(convolved(name), *operands(name))


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("1d")])
def test_channels_last(name):
    layout = torch.channels_last_3d if name.startswith("3d") else torch.channels_last
    compare(convolved(name), *operands(name, layout=layout), backward=True)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("mkldnn", [True, False])
def test_threads_and_libraries(threads, mkldnn):
    torch.set_num_threads(threads)
    with torch.backends.mkldnn.flags(enabled=mkldnn):
        compare(convolved("2d large"), *operands("2d large"), backward=True)


def test_strided_operands():
    def run(input_, weight, bias):
        return F.conv2d(input_.transpose(2, 3), weight.flip(0).transpose(2, 3), bias, padding=1)

    compare(run, *operands("2d"))


@pytest.mark.parametrize("mask", list(itertools.product([True, False], repeat=3)))
def test_output_mask(mask):
    input_, weight, _ = [tensor.detach() for tensor in operands("2d")]
    geometry = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)

    def run(*tensors):
        return torch.ops.aten.convolution_backward(*tensors, [4], *geometry, list(mask))

    compare(run, F.conv2d(input_, weight).cos(), input_, weight)


@pytest.mark.parametrize("name", ["1d", "2d", "2d grouped", "2d transposed", "3d"])
def test_double_backward(name):
    def run(*leaves):
        _, wave = convolved(name)(*leaves)
        first = torch.autograd.grad(wave.sum(), leaves, create_graph=True)
        return [*first, *torch.autograd.grad(sum(grad.square().sum() for grad in first), leaves)]

    compare(run, *operands(name, torch.float64))


def test_overrideable_pair():
    input_, weight, bias = [tensor.detach() for tensor in operands("2d")]
    geometry = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    expected = torch.ops.aten.convolution(input_, weight, bias, *geometry)
    moved = [tensor.to(DEVICE) for tensor in (input_, weight, bias)]
    got = torch.ops.aten.convolution_overrideable(*moved, *geometry)
    assert_same(expected, got)
    assert_same(expected, torch.ops.aten._convolution(*moved, *geometry, *[False] * 4))
    rest = *geometry, [True] * 3
    assert_same(
        torch.ops.aten.convolution_backward(expected, input_, weight, [4], *rest),
        torch.ops.aten.convolution_backward_overrideable(got, *moved[:2], *rest),
    )


def test_complex():
    compare(convolved("2d"), *operands("2d", torch.complex64), backward=True)


def test_errors_are_the_cpu_ones():
    input_, weight = torch.randn(2, 3, 8, 8), torch.randn(4, 5, 3, 3)
    with pytest.raises(RuntimeError, match=r"expected input.* to have 5 channels, but got 3"):
        F.conv2d(input_.to(DEVICE), weight.to(DEVICE))
    with pytest.raises(RuntimeError, match="same device"):
        F.conv2d(input_.to(DEVICE), weight)
    with pytest.raises(RuntimeError, match=r"[Kk]ernel size can't be greater"):
        F.conv2d(input_[:, :, :2].to(DEVICE), weight[:, :3].to(DEVICE))


def test_cost_counts_two_operations_per_multiply_add():
    input_ = torch.zeros(8, 64, 32, 32, device=DEVICE)
    small, large = (torch.zeros(out, 64, 3, 3, device=DEVICE) for out in (64, 256))

    def duration(weight):
        start, end = (torch.npusim.Event(enable_timing=True) for _ in range(2))
        start.record()
        F.conv2d(input_, weight)
        end.record()
        end.synchronize()
        return start.elapsed_time(end)

    assert duration(large) > 2 * duration(small)
