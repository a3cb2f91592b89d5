# SPDX-License-Identifier: BSD-3-Clause
"""Quantized tensors on npusim, per tensor and per channel: the CPU's values, and round trips."""

import copy

import pytest
import torch
import torch.nn.functional as F
from oracle import DEVICE, assert_same, compare

pytestmark = pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")

DTYPES = [torch.quint8, torch.qint8, torch.qint32]


def quantized(device="cpu", dtype=torch.quint8, shape=(2, 3)):
    x = torch.linspace(-2, 2, torch.Size(shape).numel()).reshape(shape).to(device)
    return torch.quantize_per_tensor(x, 0.05, 7, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_quantize_and_accessors(dtype):
    on_device = quantized(DEVICE, dtype)
    assert on_device.is_quantized
    assert on_device.qscheme() == torch.per_tensor_affine
    assert_same(quantized(dtype=dtype), on_device)
    compare(lambda q: (q.dequantize(), torch.dequantize([q])[0]), quantized(dtype=dtype))


def test_scale_and_zero_point_as_tensors():
    given = torch.linspace(-1, 1, 6), torch.tensor(0.1), torch.tensor(3)
    compare(lambda *given: torch.quantize_per_tensor(*given, torch.quint8), *given)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_round_trips(dtype):
    on_cpu, on_device = quantized(dtype=dtype), quantized(DEVICE, dtype)
    assert_same(on_cpu, on_cpu.to(DEVICE))
    assert_same(on_device.cpu(), on_device)
    assert_same(on_cpu, on_device.clone())
    assert_same(on_cpu, torch.empty_like(on_device).copy_(on_device))
    filled = torch._empty_affine_quantized(
        (2, 3), scale=0.05, zero_point=7, dtype=dtype, device=DEVICE
    )
    filled.copy_(on_cpu.dequantize().to(DEVICE))
    assert_same(on_cpu, filled)


def test_views_and_operators():
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
        compare(operate, quantized(shape=(1, 2, 4, 4)))


def test_printing():
    text = repr(quantized(DEVICE))
    assert "device='npusim:0'," in text
    assert text.replace("device='npusim:0',", "").split() == repr(quantized()).split()


def per_channel(device="cpu", dtype=torch.qint8, axis=0):
    x = torch.linspace(-2, 2, 6).reshape(2, 3)
    channels = x.shape[axis]
    scales = torch.linspace(0.02, 0.05, channels, dtype=torch.float64)
    given = [tensor.to(device) for tensor in (x, scales, torch.arange(channels))]
    return torch.quantize_per_channel(*given, axis, dtype)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_per_channel(dtype, axis):
    on_cpu, on_device = per_channel("cpu", dtype, axis), per_channel(DEVICE, dtype, axis)
    assert_same(on_cpu, on_device)
    assert_same(on_cpu, on_cpu.to(DEVICE))
    assert_same(on_device.cpu(), on_device)
    assert on_device.cpu().q_per_channel_scales().device.type == "cpu"
    compare(lambda q: (q.clone(), q.dequantize()), on_cpu)


def test_per_channel_scales_outlive_the_call():
    """float32 scales are converted inside the kernel: its memory becomes the tensor's."""
    x, scales, zero_points = torch.randn(2, 3), torch.tensor([0.1, 0.2]), torch.tensor([0, 1])
    moved = [tensor.to(DEVICE) for tensor in (x, scales, zero_points)]
    expected = torch.quantize_per_channel(x, scales, zero_points, 0, torch.qint8)
    got = torch.quantize_per_channel(*moved, 0, torch.qint8)
    del moved
    assert_same(expected, got)


@pytest.mark.parametrize("make", [quantized, per_channel], ids=["per tensor", "per channel"])
def test_deep_copies(make):
    on_device = make(DEVICE)
    copied = copy.deepcopy(on_device)
    assert copied.data_ptr() != on_device.data_ptr()
    assert_same(make(), copied)


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
    made = torch.empty(2, 3, dtype=dtype, device=DEVICE)
    assert (made.dtype, made.shape, made.device.type) == (dtype, (2, 3), DEVICE)
