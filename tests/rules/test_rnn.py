# SPDX-License-Identifier: BSD-3-Clause
"""RNNs under the rules refuse what cuDNN refuses, and compute the same bits otherwise."""

import pytest
import torch
from processes import python

NPU = torch.device("npusim")
KINDS = torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def rnn(request):
    torch.manual_seed(0)
    return request.param(3, 4, num_layers=2, bidirectional=True).to(NPU)


def states(rnn, made):
    return (made, made.clone()) if isinstance(rnn, torch.nn.LSTM) else made


def test_states_are_contiguous(rnn):
    x = torch.ones(5, 2, 3, device=NPU)
    strided = torch.zeros(2, 4, 4, device=NPU).transpose(0, 1)
    given = (strided, strided) if isinstance(rnn, torch.nn.LSTM) else strided
    with pytest.raises(RuntimeError, match=r"^rnn: hx is not contiguous$"):
        rnn(x, given)
    whole, _ = rnn(x, states(rnn, strided.contiguous()))
    with torch.backends.cudnn.flags(enabled=False):
        assert torch.equal(rnn(x, given)[0], whole)


def test_the_cell_is_contiguous_too():
    lstm = torch.nn.LSTM(3, 4, num_layers=2).to(NPU)
    strided = torch.zeros(2, 2, 4, device=NPU).transpose(0, 1)
    with pytest.raises(RuntimeError, match=r"^rnn: cx is not contiguous$"):
        lstm(torch.ones(5, 2, 3, device=NPU), (strided.contiguous(), strided))


@pytest.mark.parametrize("packed", [False, True])
def test_a_gradient_of_an_rnn_in_eval_is_refused(rnn, packed):
    x = torch.ones(5, 2, 3, device=NPU)
    given = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 3])) if packed else x

    def loss():
        output, _ = rnn(given)
        return (output.data if packed else output).sum()

    with pytest.raises(RuntimeError, match=r"^cudnn RNN backward can only be called in training"):
        rnn.eval() and loss().backward()
    with torch.backends.cudnn.flags(enabled=False):
        loss().backward()
    with torch.no_grad():
        loss()
    rnn.train() and loss().backward()


def test_a_second_derivative_is_refused(rnn):
    x = torch.ones(5, 2, 3, device=NPU, requires_grad=True)

    def penalty():
        (gradient,) = torch.autograd.grad(rnn(x)[0].sum(), x, create_graph=True)
        return gradient.square().sum()

    with pytest.raises(NotImplementedError, match="Double backwards is not supported for CuDNN"):
        penalty().backward()
    with torch.backends.cudnn.flags(enabled=False):
        penalty().backward()


@pytest.mark.parametrize("way", ["vmap", "grad"])
def test_batched_gradients_are_refused(rnn, way):
    x = torch.ones(5, 2, 3, device=NPU, requires_grad=True)

    def rows():
        sums, each = rnn(x)[0].sum((0, 2)), torch.eye(2, device=NPU)
        if way == "grad":
            return torch.autograd.grad(sums, x, each, is_grads_batched=True)[0]
        return torch.vmap(lambda row: torch.autograd.grad(sums, x, row)[0])(each)

    with pytest.raises(RuntimeError, match=r"Batching rule .*_cudnn_rnn_backward\. We could"):
        rows()
    with torch.backends.cudnn.flags(enabled=False):
        assert rows().shape == (2, 5, 2, 3)


def test_the_bits_are_those_without_the_rules(rnn):
    x = torch.randn(5, 2, 3).to(NPU)

    def gradients():
        rnn.zero_grad()
        rnn(x)[0].square().sum().backward()
        return [parameter.grad.clone() for parameter in rnn.parameters()]

    with_rules = gradients()
    torch.npusim.set_rules("off")
    without = gradients()
    torch.npusim.set_rules("cuda")
    assert all(map(torch.equal, with_rules, without))


def test_an_rnn_moves_to_the_device_without_a_warning():
    program = (
        "import warnings; warnings.simplefilter('error')\n"
        "import torch, torch_npusim.as_cuda\n"
        "rnn = torch.nn.LSTM(3, 4).to('cuda')\n"
        "print(rnn(torch.ones(2, 1, 3, device='cuda'))[0].shape)"
    )
    assert python("-c", program, check=True).stdout.strip() == "torch.Size([2, 1, 4])"
