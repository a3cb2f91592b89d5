# SPDX-License-Identifier: BSD-3-Clause
"""Quantized tensors on npusim, per tensor and per channel: the CPU's values, and round trips."""

import copy

import pytest
import torch
import torch.nn.functional as F

import torch_npusim  # noqa: F401  (for where autoload has stepped back)

DEV = "npusim"
pytestmark = pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")

DTYPES = [torch.quint8, torch.qint8, torch.qint32]


def pair(dtype=torch.quint8, shape=(2, 3), scale=0.05, zero_point=7):
    x = torch.linspace(-2, 2, torch.Size(shape).numel()).reshape(shape)
    return (
        torch.quantize_per_tensor(x, scale, zero_point, dtype),
        torch.quantize_per_tensor(x.to(DEV), scale, zero_point, dtype),
    )


def assert_same(expected, got):
    assert got.device.type == DEV
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    if expected.is_quantized:
        assert got.q_scale() == expected.q_scale()
        assert got.q_zero_point() == expected.q_zero_point()
        expected, got = expected.int_repr(), got.int_repr()
    assert torch.equal(got.cpu(), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_quantize_and_accessors(dtype):
    on_cpu, on_device = pair(dtype)
    assert on_device.is_quantized
    assert on_device.qscheme() == torch.per_tensor_affine
    assert_same(on_cpu, on_device)
    assert_same(on_cpu.dequantize(), on_device.dequantize())
    assert_same(torch.dequantize([on_cpu])[0], torch.dequantize([on_device])[0])


def test_scale_and_zero_point_as_tensors():
    x = torch.linspace(-1, 1, 6)
    scale, zero_point = torch.tensor(0.1), torch.tensor(3)
    expected = torch.quantize_per_tensor(x, scale, zero_point, torch.quint8)
    moved = [tensor.to(DEV) for tensor in (x, scale, zero_point)]
    assert_same(expected, torch.quantize_per_tensor(*moved, torch.quint8))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_round_trips(dtype):
    on_cpu, on_device = pair(dtype)
    assert_same(on_cpu, on_cpu.to(DEV))
    back = on_device.cpu()
    assert back.device.type == "cpu"
    assert torch.equal(back.int_repr(), on_cpu.int_repr())
    assert_same(on_cpu, on_device.clone())
    filled = torch.empty_like(on_device)
    filled.copy_(on_device)
    assert_same(on_cpu, filled)
    filled = torch._empty_affine_quantized(
        (2, 3), scale=0.05, zero_point=7, dtype=dtype, device=DEV
    )
    filled.copy_(on_cpu.dequantize().to(DEV))
    assert_same(on_cpu, filled)


def test_views_and_operators():
    on_cpu, on_device = pair(shape=(1, 2, 4, 4))
    for operate in (
        lambda q: q.view(2, 16),
        lambda q: q[0, 1],
        lambda q: q.transpose(2, 3).contiguous(),
        lambda q: q.unsqueeze(0),
        lambda q: torch.cat([q, q]),
        lambda q: q.clamp(-0.5, 0.5),
        lambda q: q == q,
        lambda q: torch.relu(q),
        lambda q: torch.sigmoid(q),
        lambda q: F.avg_pool2d(q, 2),
        lambda q: F.max_pool2d(q, 2),
        lambda q: F.interpolate(q, scale_factor=2),
    ):
        assert_same(operate(on_cpu), operate(on_device))


def test_printing():
    on_cpu, on_device = pair()
    text = repr(on_device)
    assert "device='npusim:0'," in text
    assert text.replace("device='npusim:0',", "").split() == repr(on_cpu).split()


def per_channel(dtype=torch.qint8, axis=0):
    """The same per-channel tensor on the CPU and on npusim."""
    x = torch.linspace(-2, 2, 6).reshape(2, 3)
    channels = x.shape[axis]
    scales = torch.linspace(0.02, 0.05, channels, dtype=torch.float64)
    zero_points = torch.arange(channels)
    moved = [tensor.to(DEV) for tensor in (x, scales, zero_points)]
    return (
        torch.quantize_per_channel(x, scales, zero_points, axis, dtype),
        torch.quantize_per_channel(*moved, axis, dtype),
    )


def assert_same_per_channel(expected, got):
    assert got.device.type == DEV
    assert got.qscheme() == expected.qscheme()
    assert got.q_per_channel_axis() == expected.q_per_channel_axis()
    for name in ("q_per_channel_scales", "q_per_channel_zero_points", "int_repr", "dequantize"):
        one, other = getattr(expected, name)(), getattr(got, name)()
        assert other.device.type == DEV
        assert other.dtype == one.dtype
        assert torch.equal(other.cpu(), one)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_per_channel(dtype, axis):
    on_cpu, on_device = per_channel(dtype, axis)
    assert_same_per_channel(on_cpu, on_device)
    assert_same_per_channel(on_cpu, on_cpu.to(DEV))
    assert torch.equal(on_device.cpu().int_repr(), on_cpu.int_repr())
    assert on_device.cpu().q_per_channel_scales().device.type == "cpu"
    assert_same_per_channel(on_cpu.clone(), on_device.clone())


def test_per_channel_scales_outlive_the_call():
    """float32 scales are converted inside the kernel: its memory becomes the tensor's."""
    x, scales, zero_points = torch.randn(2, 3), torch.tensor([0.1, 0.2]), torch.tensor([0, 1])
    moved = [tensor.to(DEV) for tensor in (x, scales, zero_points)]
    expected = torch.quantize_per_channel(x, scales, zero_points, 0, torch.qint8)
    got = torch.quantize_per_channel(*moved, 0, torch.qint8)
    del moved
    assert_same_per_channel(expected, got)


@pytest.mark.parametrize("make", [pair, per_channel], ids=["per tensor", "per channel"])
def test_deep_copies(make):
    on_cpu, on_device = make()
    copied = copy.deepcopy(on_device)
    assert copied.data_ptr() != on_device.data_ptr()
    assert copied.qscheme() == on_cpu.qscheme()
    assert torch.equal(copied.int_repr().cpu(), on_cpu.int_repr())


def test_no_composite_shadows_a_quantized_kernel():
    """Where CPU has a quantized kernel and a composite exists too, npusim has its own entry."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    composites = ("CompositeImplicitAutograd", "CompositeExplicitAutograd")
    views = {"aten::squeeze", "aten::squeeze.dim", "aten::squeeze.dims", "aten::unsqueeze"}
    missing = [
        name
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::") and name not in views
        if has(name, "QuantizedCPU") and any(has(name, key) for key in composites)
        if not has(name, "QuantizedPrivateUse1")
    ]
    assert missing == []


@pytest.mark.parametrize("dtype", [torch.qint8, torch.quint8, torch.qint32])
def test_a_tensor_without_parameters_yet(dtype):
    made = torch.empty(2, 3, dtype=dtype, device=DEV)
    assert (made.dtype, made.shape, made.device.type) == (dtype, (2, 3), DEV)
