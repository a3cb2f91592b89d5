# SPDX-License-Identifier: BSD-3-Clause
"""Attention on npusim goes the CPU's way, with the CPU's bits, forward and backward."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import torch_npusim  # noqa: F401  (for where autoload has stepped back)

DEV = "npusim"


def operands(dtype=torch.float32, length=9, keys=9, heads=2, kv_heads=2, width=8):
    generator = torch.Generator().manual_seed(5)
    shapes = [(3, heads, length, width), (3, kv_heads, keys, width), (3, kv_heads, keys, width)]
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def masks(length, keys):
    lower = torch.ones(length, keys, dtype=torch.bool).tril()
    return {
        "none": None,
        "bool": lower,
        "float": torch.where(lower, 0.0, -1.5),
        "float 4d": torch.linspace(-1, 1, 3 * 2 * length * keys).reshape(3, 2, length, keys),
    }


def run(device, tensors, mask=None, backward=True, **kwargs):
    leaves = [tensor.detach().to(device).requires_grad_(backward) for tensor in tensors]
    if mask is not None:
        mask = mask.to(device)
    out = F.scaled_dot_product_attention(*leaves, attn_mask=mask, **kwargs)
    if not backward:
        return [out]
    out.sin().sum().backward()
    return [out, *(leaf.grad for leaf in leaves)]


def assert_same(on_cpu, on_device):
    for expected, got in zip(on_cpu, on_device, strict=True):
        assert got.device.type == DEV
        assert got.stride() == expected.stride()
        assert torch.equal(got.cpu(), expected)


@pytest.mark.parametrize("backward", [True, False])
@pytest.mark.parametrize("mask", ["none", "bool", "float", "float 4d"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_masks_and_dtypes(dtype, mask, backward):
    tensors = operands(dtype, 9, 11)
    mask = masks(9, 11)[mask]
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.to(dtype)
    assert_same(run("cpu", tensors, mask, backward), run(DEV, tensors, mask, backward))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("causal", [True, False])
def test_long_sequences(causal, threads):
    tensors = operands(length=300, keys=300, width=32)
    torch.set_num_threads(threads)
    # Autograd's device threads keep the thread count that they started with.
    with torch.autograd.set_multithreading_enabled(False):
        expected = run("cpu", tensors, is_causal=causal, scale=0.3)
        assert_same(expected, run(DEV, tensors, is_causal=causal, scale=0.3))


@pytest.mark.parametrize("backend", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION])
def test_chosen_backend(backend):
    tensors = operands()
    with sdpa_kernel(backend):
        assert_same(run("cpu", tensors, is_causal=True), run(DEV, tensors, is_causal=True))


def test_grouped_queries_and_transposed_operands():
    tensors = operands(heads=4, kv_heads=2)
    assert_same(run("cpu", tensors, enable_gqa=True), run(DEV, tensors, enable_gqa=True))

    def transposed(device):
        moved = [tensor.to(device).transpose(1, 2) for tensor in operands()]
        return [F.scaled_dot_product_attention(*moved)]

    assert_same(transposed("cpu"), transposed(DEV))


def test_mask_with_gradient():
    tensors, mask = operands(), torch.linspace(-1, 1, 81).reshape(9, 9)

    def mask_grad(device):
        leaf = mask.detach().to(device).requires_grad_()
        moved = [tensor.to(device) for tensor in tensors]
        F.scaled_dot_product_attention(*moved, attn_mask=leaf).sin().sum().backward()
        return [leaf.grad]

    assert_same(mask_grad("cpu"), mask_grad(DEV))


def test_the_choice_is_the_cpus():
    cases = [
        (operands(), None, 0.0),
        (operands(), None, 0.1),
        (operands(), masks(9, 9)["float"].requires_grad_(), 0.0),
        ([tensor[0] for tensor in operands()], None, 0.0),
        (operands(torch.float64), None, 0.0),
    ]
    for tensors, mask, dropout in cases:
        expected = torch._fused_sdp_choice(*tensors, attn_mask=mask, dropout_p=dropout)
        moved = [tensor.to(DEV) for tensor in tensors]
        if mask is not None:
            mask = mask.detach().to(DEV).requires_grad_()
        assert torch._fused_sdp_choice(*moved, attn_mask=mask, dropout_p=dropout) == expected


def test_dropout_draws_from_the_device_generator():
    tensors = [tensor.to(DEV) for tensor in operands()]

    def draw():
        torch.npusim.manual_seed(6)
        return F.scaled_dot_product_attention(*tensors, dropout_p=0.5)

    assert torch.equal(draw(), draw())
    assert not torch.equal(draw(), F.scaled_dot_product_attention(*tensors, dropout_p=0.5))


def test_overrideable_pair():
    tensors = operands()
    expected = run("cpu", tensors, is_causal=True)
    leaves = [tensor.to(DEV).requires_grad_() for tensor in tensors]
    op = torch.ops.aten._scaled_dot_product_fused_attention_overrideable
    out = op(*leaves, None, 0.0, True)[0]
    out.sin().sum().backward()
    assert_same(expected, [out, *(leaf.grad for leaf in leaves)])
    with pytest.raises(NotImplementedError, match=r"dropout_p=0\.5"):
        op(*leaves, None, 0.5)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_multihead_attention(training, need_weights):
    module = nn.MultiheadAttention(16, 4, batch_first=True).train(training)
    x = torch.randn(3, 7, 16)
    padding = torch.zeros(3, 7, dtype=torch.bool)
    padding[1, 5:] = True

    def attend(device):
        here = copy.deepcopy(module).to(device)
        moved = x.detach().to(device).requires_grad_(training)
        results = []
        for mask in (None, padding.to(device)):
            with torch.set_grad_enabled(training):
                out, weights = here(
                    moved, moved, moved, key_padding_mask=mask, need_weights=need_weights
                )
            results += [out, weights] if need_weights else [out]
        if training:
            sum(result.sin().sum() for result in results).backward()
            results += [moved.grad, *(p.grad for p in here.parameters())]
        return results

    assert_same(attend("cpu"), attend(DEV))


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_encoder_layer(training, norm_first):
    module = nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True, norm_first=norm_first)
    module.train(training)
    x = torch.randn(3, 7, 16)

    def encode(device):
        here = copy.deepcopy(module).to(device)
        moved = x.detach().to(device).requires_grad_(training)
        mask = nn.Transformer.generate_square_subsequent_mask(7, device)
        with torch.set_grad_enabled(training):
            results = [here(moved), here(moved, mask), here(moved, mask, is_causal=True)]
        if training:
            sum(result.sin().sum() for result in results).backward()
            results += [moved.grad, *(p.grad for p in here.parameters())]
        return results

    assert_same(encode("cpu"), encode(DEV))


def test_transformer():
    module = nn.Transformer(16, 4, 1, 1, 32, dropout=0.0, batch_first=True)
    source, target = torch.randn(3, 7, 16), torch.randn(3, 5, 16)

    def translate(device):
        here = copy.deepcopy(module).to(device)
        out = here(source.to(device), target.to(device))
        out.sin().sum().backward()
        return [out, *(p.grad for p in here.parameters())]

    assert_same(translate("cpu"), translate(DEV))


def test_under_vmap():
    """The choice of a backend meets tensors without memory."""
    attend = torch.vmap(F.scaled_dot_product_attention)
    for shape in ((2, 4, 3, 8), (2, 3, 4, 5, 8)):
        q = torch.randn(shape)
        got = attend(*[q.to(DEV)] * 3)
        assert got.device.type == DEV
        assert torch.equal(got.cpu(), attend(q, q, q))
