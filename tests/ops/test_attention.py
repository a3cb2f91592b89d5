# SPDX-License-Identifier: BSD-3-Clause
"""Attention on npusim goes the CPU's way, with the CPU's bits, forward and backward."""

import pytest
import torch
import torch.nn.functional as F
from oracle import DEVICE, compare
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel


def operands(dtype=torch.float32, length=9, keys=9, heads=2, kv_heads=2, width=8):
    generator = torch.Generator().manual_seed(5)
    shapes = [(3, heads, length, width), (3, kv_heads, keys, width), (3, kv_heads, keys, width)]
    made = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    return [tensor.requires_grad_() for tensor in made]


def masks(length, keys):
    lower = torch.ones(length, keys, dtype=torch.bool).tril()
    return {
        "none": None,
        "bool": lower,
        "float": torch.where(lower, 0.0, -1.5),
        "float 4d": torch.linspace(-1, 1, 3 * 2 * length * keys).reshape(3, 2, length, keys),
    }


def attend(*tensors, mask=None, **kwargs):
    """Attention, and something of it whose gradient is not the same everywhere."""
    out = F.scaled_dot_product_attention(*tensors, attn_mask=mask, **kwargs)
    return out, out.sin()


@pytest.mark.parametrize("backward", [True, False])
@pytest.mark.parametrize("mask", ["none", "bool", "float", "float 4d"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_masks_and_dtypes(dtype, mask, backward):
    mask = masks(9, 11)[mask]
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.to(dtype)
    tensors = [tensor.requires_grad_(backward) for tensor in operands(dtype, 9, 11)]
    compare(attend, *tensors, mask=mask, backward=backward)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("causal", [True, False])
def test_long_sequences(causal, threads):
    tensors = operands(length=300, keys=300, width=32)
    torch.set_num_threads(threads)
    # Autograd's device threads keep the thread count that they started with.
    with torch.autograd.set_multithreading_enabled(False):
        compare(attend, *tensors, is_causal=causal, scale=0.3, backward=True)


@pytest.mark.parametrize("backend", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION])
def test_chosen_backend(backend):
    with sdpa_kernel(backend):
        compare(attend, *operands(), is_causal=True, backward=True)


def test_grouped_queries_and_transposed_operands():
    compare(attend, *operands(heads=4, kv_heads=2), enable_gqa=True, backward=True)
    compare(lambda *qkv: attend(*[tensor.transpose(1, 2) for tensor in qkv]), *operands())


def test_mask_with_gradient():
    mask = torch.linspace(-1, 1, 81).reshape(9, 9).requires_grad_()
    compare(attend, *operands(), mask=mask, backward=True)


def test_the_choice_is_the_cpus():
    cases = [
        (operands(), None, 0.0),
        (operands(), None, 0.1),
        (operands(), masks(9, 9)["float"].requires_grad_(), 0.0),
        ([tensor[0] for tensor in operands()], None, 0.0),
        (operands(torch.float64), None, 0.0),
    ]
    for tensors, mask, dropout in cases:
        given = [tensor.detach() for tensor in tensors]
        compare(torch._fused_sdp_choice, *given, attn_mask=mask, dropout_p=dropout)


def test_dropout_draws_from_the_device_generator():
    tensors = [tensor.to(DEVICE) for tensor in operands()]

    def draw():
        torch.npusim.manual_seed(6)
        return F.scaled_dot_product_attention(*tensors, dropout_p=0.5)

    assert torch.equal(draw(), draw())
    assert not torch.equal(draw(), F.scaled_dot_product_attention(*tensors, dropout_p=0.5))


def test_overrideable_pair():
    fused = torch.ops.aten._scaled_dot_product_fused_attention_overrideable

    def run(*leaves):
        if leaves[0].is_cpu:
            return attend(*leaves, is_causal=True)
        out = fused(*leaves, None, 0.0, True)[0]
        return out, out.sin()

    compare(run, *operands(), backward=True)
    leaves = [tensor.to(DEVICE) for tensor in operands()]
    with pytest.raises(NotImplementedError, match=r"dropout_p=0\.5"):
        fused(*leaves, None, 0.5)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_multihead_attention(training, need_weights):
    padding = torch.zeros(3, 7, dtype=torch.bool)
    padding[1, 5:] = True

    def attends(module, x, padding):
        with torch.set_grad_enabled(training):
            made = [
                module(x, x, x, key_padding_mask=mask, need_weights=need_weights)
                for mask in (None, padding)
            ]
        made = [result for results in made for result in results if result is not None]
        return made, [result.sin() for result in made]

    module = nn.MultiheadAttention(16, 4, batch_first=True).train(training)
    x = torch.randn(3, 7, 16, requires_grad=training)
    compare(attends, module, x, padding, backward=training)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_encoder_layer(training, norm_first):
    def encode(module, x):
        mask = nn.Transformer.generate_square_subsequent_mask(7, x.device)
        with torch.set_grad_enabled(training):
            made = [module(x), module(x, mask), module(x, mask, is_causal=True)]
        return made, [result.sin() for result in made]

    module = nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True, norm_first=norm_first)
    x = torch.randn(3, 7, 16, requires_grad=training)
    compare(encode, module.train(training), x, backward=training)


def test_transformer():
    def translate(module, *sentences):
        out = module(*sentences)
        return out, out.sin()

    module = nn.Transformer(16, 4, 1, 1, 32, dropout=0.0, batch_first=True)
    compare(translate, module, torch.randn(3, 7, 16), torch.randn(3, 5, 16), backward=True)


def test_under_vmap():
    """The choice of a backend meets tensors without memory."""
    mapped = torch.vmap(F.scaled_dot_product_attention)
    for shape in ((2, 4, 3, 8), (2, 3, 4, 5, 8)):
        compare(lambda q: mapped(q, q, q), torch.randn(shape))
