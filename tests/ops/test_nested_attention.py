# SPDX-License-Identifier: BSD-3-Clause
"""Attention over nested tensors, strided and jagged, and the modules that make nested tensors."""

import pytest
import torch
import torch.nn.functional as F
from oracle import DEVICE, bits, compare
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")

LENGTHS = (2, 3, 5)


def heads(seed, device="cpu", requires_grad=False):
    """A jagged tensor of shape (batch, heads, length, features)."""
    generator = torch.Generator().manual_seed(seed)
    parts = [torch.randn(length, 2, 8, generator=generator) for length in LENGTHS]
    made = torch.nested.nested_tensor(parts, layout=torch.jagged, device=device)
    return made.transpose(1, 2).detach().requires_grad_(requires_grad)


def assert_equal_values(ones, others):
    for one, other in zip(ones, others, strict=True):
        assert other.device.type == DEVICE
        assert torch.equal(bits(one.values()), bits(other.values()))


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("options", [{}, {"scale": 0.3}, {"dropout_p": 1.0}], ids=str)
def test_jagged_attention(options, requires_grad):
    runs = []
    for device in ("cpu", DEVICE):
        operands = [heads(seed, device, requires_grad) for seed in range(3)]
        result = F.scaled_dot_product_attention(*operands, **options)
        if requires_grad:
            (result.values() ** 2).sum().backward()
        runs.append([result, *(operand.grad for operand in operands if requires_grad)])
    assert_equal_values(*runs)


def test_jagged_attention_with_a_causal_mask_is_refused_as_on_the_cpu():
    for device in ("cpu", DEVICE):
        operand = heads(0, device)
        # Builds for CUDA ask their driver first, from 2.14 on.
        with pytest.raises(RuntimeError, match=r"No viable backend|CUDA driver version"):
            F.scaled_dot_product_attention(operand, operand, operand, is_causal=True)


def test_jagged_attention_drops_by_the_devices_generator():
    operand = heads(0, DEVICE)
    drawn = []
    for _ in range(2):
        torch.npusim.manual_seed(5)
        drawn.append(F.scaled_dot_product_attention(operand, operand, operand, dropout_p=0.5))
    again = F.scaled_dot_product_attention(operand, operand, operand, dropout_p=0.5)
    assert torch.equal(drawn[0].values(), drawn[1].values())
    assert not torch.equal(drawn[0].values(), again.values())


@pytest.mark.parametrize("options", [{}, {"scale": 0.3}], ids=str)
def test_strided_attention(options):
    shapes = [torch.randn(2, length, 4) for length in LENGTHS]
    operand = torch.nested.nested_tensor(shapes, requires_grad=True)
    compare(lambda x: F.scaled_dot_product_attention(x, x, x, **options), operand, backward=True)


def encoder():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 2).eval()


PADDED = torch.tensor([[0, 0, 0, 0, 0], [0, 0, 0, 1, 1], [0, 1, 1, 1, 1]], dtype=torch.bool)


@pytest.mark.parametrize("grad", [False, True])
def test_an_encoder_with_padding(grad):
    """Without gradients core turns the padded batch into a nested tensor."""
    model, x = encoder(), torch.randn(3, 5, 16)
    with torch.set_grad_enabled(grad):
        expected = model(x, src_key_padding_mask=PADDED)
        got = model.to(DEVICE)(x.to(DEVICE), src_key_padding_mask=PADDED.to(DEVICE))
    assert torch.equal(bits(expected), bits(got))


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_first", [False, True])
def test_an_encoder_layer_of_a_nested_tensor(activation, norm_first):
    layer = nn.TransformerEncoderLayer(
        16, 2, 32, activation=activation, norm_first=norm_first, batch_first=True
    ).eval()
    x = torch.nested.nested_tensor([torch.randn(length, 16) for length in LENGTHS])

    def run(x):
        with torch.no_grad():
            return layer.to(x.device)(x)

    compare(run, x)


def test_multihead_attention_of_a_nested_tensor():
    attention = nn.MultiheadAttention(16, 2, batch_first=True).eval()
    x = torch.nested.nested_tensor([torch.randn(length, 16) for length in LENGTHS])

    def run(x):
        with torch.no_grad():
            return attention.to(x.device)(x, x, x, need_weights=False)

    compare(run, x)


def test_training_over_strided_nested_tensors():
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))

    def train(model, x):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            torch.nested.to_padded_tensor(model(x), 0.0).square().sum().backward()
            optimizer.step()
        return [parameter.detach() for parameter in model.parameters()]

    x = torch.nested.nested_tensor([torch.randn(length, 8) for length in LENGTHS])
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    expected = [parameter.clone() for parameter in train(model, x)]
    model.load_state_dict(start)
    for one, other in zip(expected, train(model.to(DEVICE), x.to(DEVICE)), strict=True):
        assert torch.equal(bits(one), bits(other))
