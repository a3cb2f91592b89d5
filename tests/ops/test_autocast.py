# SPDX-License-Identifier: BSD-3-Clause
"""The autocast trap: without a fallthrough every operator that autocast does not list raises."""

import copy

import pytest
import torch
from oracle import DEVICE

UNLISTED = {
    "native": lambda x: x + 1,
    "fallback": lambda x: x.flip(0),
    "out": lambda x: torch.cumsum(x, 0, out=torch.empty(0, device=x.device)),
    "in place": lambda x: x.clone().erfinv_(),
    "view": lambda x: x.t(),
    "copy": lambda x: x.clone(),
    "sort": lambda x: x.sort(dim=1)[0],
    "factory": lambda x: torch.ones(2, device=x.device),
    "index": lambda x: x[torch.tensor([0], device=x.device)],
    "foreach": lambda x: torch._foreach_exp([x])[0],
    "random": lambda x: torch.rand_like(x),
    "to host": lambda x: x.cpu().to(DEVICE),
}


@pytest.mark.parametrize("where", ["npusim", "cpu"])
@pytest.mark.parametrize("name", UNLISTED)
def test_unlisted_operators_run_under_autocast(name, where):
    x = torch.rand(3, 3, device=DEVICE)
    torch.manual_seed(1)
    plain = UNLISTED[name](x)
    torch.manual_seed(1)
    with torch.autocast(where, dtype=torch.bfloat16):
        under = UNLISTED[name](x)
    assert under.dtype == plain.dtype == torch.float32
    assert torch.equal(under, plain)


def test_autocast_of_the_cpu_leaves_device_tensors_alone():
    x = torch.rand(3, 3, device=DEVICE)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.float32
        assert (x.cpu() @ x.cpu()).dtype == torch.bfloat16


def test_autocast_of_the_device_leaves_host_tensors_alone():
    x = torch.rand(3, 3)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.float32


def test_backward_under_autocast():
    x = torch.rand(3, 3, device=DEVICE, requires_grad=True)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        x.cumsum(0).sort(dim=1)[0].sum().backward()
    assert x.grad.dtype == torch.float32


def test_a_fallback_kernel_does_not_meet_autocast_again():
    """Inside a CPU kernel, autocast of the CPU has had its turn."""
    x = torch.rand(8, 8, device=DEVICE)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.autocast(DEVICE, dtype=torch.bfloat16):
        assert torch.cdist(x, x).dtype == torch.float32
        assert torch.linalg.inv(x + 9 * torch.eye(8, device=DEVICE)).dtype == torch.float32


@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_run_in_the_lower_precision(kind, packed, given):
    """All operands are converted first, as torch converts those of cuDNN."""
    model = getattr(torch.nn, kind)(3, 4, bidirectional=True).to(DEVICE)
    lower = copy.deepcopy(model).to(torch.bfloat16)
    x = torch.rand(5, 2, 3, device=DEVICE).to(given)
    both = [x, x.to(torch.bfloat16)]
    if packed:
        both = [
            torch.nn.utils.rnn.pack_padded_sequence(each, torch.tensor([5, 3])) for each in both
        ]
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        under, _ = model(both[0])
    expected, _ = lower(both[1])
    if packed:
        under, expected = under.data, expected.data
    assert under.dtype == torch.bfloat16
    assert torch.equal(under, expected)
    under.float().sum().backward()
    assert {parameter.grad.dtype for parameter in model.parameters()} == {torch.float32}
