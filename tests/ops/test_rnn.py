# SPDX-License-Identifier: BSD-3-Clause
"""Recurrent networks on npusim are the CPU's bit for bit, whichever way the CPU runs them."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import torch_npusim  # noqa: F401  (for where autoload has stepped back)

DEV = "npusim"
MODULES = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "tanh": nn.RNN,
    "relu": lambda *args, **kwargs: nn.RNN(*args, nonlinearity="relu", **kwargs),
}


def flat(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value for tensor in flat(item)]


def assert_same(on_cpu, on_device):
    for expected, got in zip(on_cpu, on_device, strict=True):
        assert got.device.type == DEV
        assert got.shape == expected.shape
        assert torch.equal(got.cpu(), expected)


def run(module, input_, state, device, lengths=None):
    """Outputs, final states and all gradients of one forward and backward pass."""
    module = copy.deepcopy(module).to(device)
    input_ = input_.detach().to(device).requires_grad_()
    state = [tensor.detach().to(device).requires_grad_() for tensor in state]
    hidden = tuple(state) if len(state) == 2 else state[0]
    fed = input_
    if lengths is not None:
        fed = pack_padded_sequence(input_, lengths, module.batch_first, enforce_sorted=False)
    output, last = module(fed, hidden)
    if lengths is not None:
        output, _ = pad_packed_sequence(output, module.batch_first)
    outputs = [output, *flat(last)]
    sum((tensor.sin() * (i + 1)).sum() for i, tensor in enumerate(outputs)).backward()
    return [*outputs, input_.grad, *(t.grad for t in state), *(p.grad for p in module.parameters())]


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
    return input_, states


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
    input_, state = operands(module, dtype)
    assert_same(run(module, input_, state, "cpu"), run(module, input_, state, DEV))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    ("layers", "bidirectional"), [(1, False), (1, True), (2, False), (2, True)]
)
@pytest.mark.parametrize("kind", MODULES)
def test_packed(kind, layers, bidirectional, dtype):
    module = MODULES[kind](5, 4, layers, bidirectional=bidirectional).to(dtype)
    input_, state = operands(module, dtype, batch=4, steps=6)
    lengths = torch.tensor([3, 6, 1, 6])
    expected = run(module, input_, state, "cpu", lengths)
    assert_same(expected, run(module, input_, state, DEV, lengths))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_projections(bidirectional, packed):
    module = nn.LSTM(5, 6, 2, proj_size=3, bidirectional=bidirectional)
    input_, state = operands(module, torch.float32)
    lengths = torch.tensor([5, 2, 4]) if packed else None
    expected = run(module, input_, state, "cpu", lengths)
    assert_same(expected, run(module, input_, state, DEV, lengths))


@pytest.mark.parametrize("kind", MODULES)
def test_without_gradients_and_unbatched(kind):
    module = MODULES[kind](6, 7, 2)
    device_module = copy.deepcopy(module).to(DEV)
    for shape in [(5, 3, 6), (5, 6)]:
        input_ = torch.randn(shape)
        with torch.no_grad():
            assert_same(flat(module(input_)), flat(device_module(input_.to(DEV))))
        with torch.inference_mode():
            assert_same(flat(module(input_)), flat(device_module(input_.to(DEV))))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_large_with_threads(kind, threads):
    module = MODULES[kind](64, 128)
    input_, state = operands(module, torch.float32, batch=32, steps=20)
    torch.set_num_threads(threads)
    assert_same(run(module, input_, state, "cpu"), run(module, input_, state, DEV))


def test_lstm_without_onednn():
    module = nn.LSTM(6, 7, 2, bidirectional=True)
    input_, state = operands(module, torch.float32)
    with torch.backends.mkldnn.flags(enabled=False):
        assert_same(run(module, input_, state, "cpu"), run(module, input_, state, DEV))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_cells(cell, dtype):
    module = cell(6, 5).to(dtype)
    inputs = torch.randn(4, 3, 6, dtype=dtype)

    def unroll(device):
        here = copy.deepcopy(module).to(device)
        steps = inputs.detach().to(device).requires_grad_()
        state = None
        for step in steps:
            state = here(step, state)
        outputs = flat(state)
        sum(tensor.sin().sum() for tensor in outputs).backward()
        return [*outputs, steps.grad, *(p.grad for p in here.parameters())]

    assert_same(unroll("cpu"), unroll(DEV))


def test_double_backward():
    module = nn.GRU(3, 4).double()
    input_, (state,) = operands(module, torch.float64)

    def second(device):
        here = copy.deepcopy(module).to(device)
        leaf = input_.detach().to(device).requires_grad_()
        out, _ = here(leaf, state.to(device))
        (grad,) = torch.autograd.grad(out.sin().sum(), leaf, create_graph=True)
        grad.square().sum().backward()
        return [grad, leaf.grad, *(p.grad for p in here.parameters() if p.grad is not None)]

    assert_same(second("cpu"), second(DEV))


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_dropout_between_layers(kind):
    module = MODULES[kind](6, 7, 2, dropout=0.5).to(DEV)
    input_ = torch.randn(5, 3, 6, device=DEV)
    torch.npusim.manual_seed(3)
    first = flat(module(input_))
    torch.npusim.manual_seed(3)
    assert_same([tensor.cpu() for tensor in first], flat(module(input_)))
    assert not torch.equal(first[0], flat(module(input_))[0])
    module.eval()
    assert torch.equal(flat(module(input_))[0], flat(module(input_))[0])


@pytest.mark.parametrize("has_bias", [True, False])
def test_fused_lstm_cell(has_bias):
    generator = torch.Generator().manual_seed(4)
    gates = [torch.randn(3, 20, generator=generator, dtype=torch.float64) for _ in range(2)]
    cell = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    biases = [torch.randn(20, generator=generator, dtype=torch.float64) for _ in range(2)]
    tensors = [*gates, cell, *(biases if has_bias else [])]
    leaves = [tensor.to(DEV).requires_grad_() for tensor in tensors]
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
    leaves = [t.to(DEV).requires_grad_() for t in [*gates, hidden, *(biases if has_bias else [])]]
    torch.autograd.gradcheck(lambda *xs: torch.ops.aten._thnn_fused_gru_cell(*xs)[0], leaves)


def test_errors_are_torchs():
    module = nn.LSTM(6, 7).to(DEV)
    with pytest.raises(RuntimeError, match="same device"):
        module(torch.randn(5, 3, 6))
    with pytest.raises(RuntimeError, match="larger than 0"):
        nn.GRU(6, 7).to(DEV)(torch.randn(0, 3, 6, device=DEV))
    with pytest.raises(RuntimeError, match="input has inconsistent input_size"):
        nn.LSTMCell(6, 7).to(DEV)(torch.randn(3, 5, device=DEV))
