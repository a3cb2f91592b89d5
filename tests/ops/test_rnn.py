# SPDX-License-Identifier: BSD-3-Clause
"""Recurrent networks on npusim are the CPU's bit for bit, whichever way the CPU runs them."""

import pytest
import torch
from oracle import DEVICE, assert_same, compare
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

MODULES = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "tanh": nn.RNN,
    "relu": lambda *args, **kwargs: nn.RNN(*args, nonlinearity="relu", **kwargs),
}


def run(module, input_, *state, lengths=None):
    """Outputs and final states, and something of each whose gradient is not the same everywhere."""
    hidden = state if len(state) == 2 else state[0]
    fed = input_
    if lengths is not None:
        fed = pack_padded_sequence(input_, lengths, module.batch_first, enforce_sorted=False)
    output, last = module(fed, hidden)
    if lengths is not None:
        output, _ = pad_packed_sequence(output, module.batch_first)
    outputs = [output, *(last if isinstance(last, tuple) else [last])]
    return [*outputs, *((i + 1) * tensor.sin() for i, tensor in enumerate(outputs))]


def same(module, dtype=torch.float32, lengths=None, **sizes):
    """Compares one forward and backward pass."""
    made = operands(module, dtype, **sizes)

    def with_lengths(*given):
        return run(*given, lengths=lengths)  # which are the host's on both devices

    compare(with_lengths, module, *made, backward=True)


def operands(module, dtype, batch=3, steps=5, seed=2):
    generator = torch.Generator().manual_seed(seed)
    directions = 2 if module.bidirectional else 1
    shape = (batch, steps) if module.batch_first else (steps, batch)
    input_ = torch.randn(*shape, module.input_size, generator=generator).to(dtype)
    sizes = [getattr(module, "proj_size", 0) or module.hidden_size]
    if isinstance(module, nn.LSTM):
        sizes.append(module.hidden_size)
    states = [
        torch.randn(module.num_layers * directions, batch, size, generator=generator).to(dtype)
        for size in sizes
    ]
    return [tensor.requires_grad_() for tensor in (input_, *states)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("layers", "bidirectional", "batch_first", "bias"),
    [
        (1, False, False, True),
        (2, False, True, True),
        (2, True, False, True),
        (1, True, True, False),
    ],
)
@pytest.mark.parametrize("kind", MODULES)
def test_padded(kind, layers, bidirectional, batch_first, bias, dtype):
    module = MODULES[kind](
        6, 7, layers, bias=bias, batch_first=batch_first, bidirectional=bidirectional
    ).to(dtype)
    same(module, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    ("layers", "bidirectional"), [(1, False), (1, True), (2, False), (2, True)]
)
@pytest.mark.parametrize("kind", MODULES)
def test_packed(kind, layers, bidirectional, dtype):
    module = MODULES[kind](5, 4, layers, bidirectional=bidirectional).to(dtype)
    same(module, dtype, lengths=torch.tensor([3, 6, 1, 6]), batch=4, steps=6)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_projections(bidirectional, packed):
    module = nn.LSTM(5, 6, 2, proj_size=3, bidirectional=bidirectional)
    same(module, lengths=torch.tensor([5, 2, 4]) if packed else None)


@pytest.mark.parametrize("kind", MODULES)
def test_without_gradients_and_unbatched(kind):
    for shape in [(5, 3, 6), (5, 6)]:
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                compare(nn.Module.__call__, MODULES[kind](6, 7, 2), torch.randn(shape))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_large_with_threads(kind, threads):
    torch.set_num_threads(threads)
    same(MODULES[kind](64, 128), batch=32, steps=20)


def test_lstm_without_onednn():
    with torch.backends.mkldnn.flags(enabled=False):
        same(nn.LSTM(6, 7, 2, bidirectional=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_cells(cell, dtype):
    def unroll(module, steps):
        state = None
        for step in steps:
            state = module(step, state)
        states = state if isinstance(state, tuple) else (state,)
        return [*states, *(tensor.sin() for tensor in states)]

    steps = torch.randn(4, 3, 6, dtype=dtype, requires_grad=True)
    compare(unroll, cell(6, 5).to(dtype), steps, backward=True)


def test_double_backward():
    def second(module, leaf, state):
        out, _ = module(leaf, state)
        (grad,) = torch.autograd.grad(out.sin().sum(), leaf, create_graph=True)
        return grad, grad.square()

    module = nn.GRU(3, 4).double()
    compare(second, module, *operands(module, torch.float64), backward=True)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_dropout_between_layers(kind):
    module = MODULES[kind](6, 7, 2, dropout=0.5).to(DEVICE)
    input_ = torch.randn(5, 3, 6, device=DEVICE)
    torch.npusim.manual_seed(3)
    first = module(input_)
    torch.npusim.manual_seed(3)
    assert_same(first, module(input_))
    assert not torch.equal(first[0], module(input_)[0])
    module.eval()
    assert torch.equal(module(input_)[0], module(input_)[0])


@pytest.mark.parametrize("has_bias", [True, False])
def test_fused_lstm_cell(has_bias):
    generator = torch.Generator().manual_seed(4)
    gates = [torch.randn(3, 20, generator=generator, dtype=torch.float64) for _ in range(2)]
    cell = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    biases = [torch.randn(20, generator=generator, dtype=torch.float64) for _ in range(2)]
    tensors = [*gates, cell, *(biases if has_bias else [])]
    leaves = [tensor.to(DEVICE).requires_grad_() for tensor in tensors]
    hy, cy, _ = torch.ops.aten._thnn_fused_lstm_cell(*leaves)
    total = sum(tensors[i] for i in [0, 1, 3, 4] if i < len(tensors))
    in_, forget, candidate, out = total.chunk(4, 1)
    new_cell = forget.sigmoid() * cell + in_.sigmoid() * candidate.tanh()
    torch.testing.assert_close(cy.cpu(), new_cell)
    torch.testing.assert_close(hy.cpu(), out.sigmoid() * new_cell.tanh())
    torch.autograd.gradcheck(lambda *xs: torch.ops.aten._thnn_fused_lstm_cell(*xs)[:2], leaves)


@pytest.mark.parametrize("has_bias", [True, False])
def test_fused_gru_cell(has_bias):
    generator = torch.Generator().manual_seed(4)
    gates = [torch.randn(3, 15, generator=generator, dtype=torch.float64) for _ in range(2)]
    hidden = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    biases = [torch.randn(15, generator=generator, dtype=torch.float64) for _ in range(2)]
    leaves = [
        t.to(DEVICE).requires_grad_() for t in [*gates, hidden, *(biases if has_bias else [])]
    ]
    torch.autograd.gradcheck(lambda *xs: torch.ops.aten._thnn_fused_gru_cell(*xs)[0], leaves)


def test_errors_are_torchs():
    module = nn.LSTM(6, 7).to(DEVICE)
    with pytest.raises(RuntimeError, match="same device"):
        module(torch.randn(5, 3, 6))
    with pytest.raises(RuntimeError, match="larger than 0"):
        nn.GRU(6, 7).to(DEVICE)(torch.randn(0, 3, 6, device=DEVICE))
    with pytest.raises(RuntimeError, match="input has inconsistent input_size"):
        nn.LSTMCell(6, 7).to(DEVICE)(torch.randn(3, 5, device=DEVICE))
