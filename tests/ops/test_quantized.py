# SPDX-License-Identifier: BSD-3-Clause
"""Per-tensor quantized tensors on npusim: the CPU's values, round trips, and clear refusals."""

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


def test_per_channel_is_refused_by_name():
    scales, zero_points = torch.tensor([0.1, 0.2]), torch.tensor([0, 0])
    moved = [tensor.to(DEV) for tensor in (torch.ones(2, 3), scales, zero_points)]
    with pytest.raises(NotImplementedError, match="quantize_per_channel"):
        torch.quantize_per_channel(*moved, 0, torch.qint8)
    on_cpu = torch.quantize_per_channel(torch.ones(2, 3), scales, zero_points, 0, torch.qint8)
    with pytest.raises(NotImplementedError, match="per_channel"):
        on_cpu.to(DEV)


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
