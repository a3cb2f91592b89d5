# SPDX-License-Identifier: BSD-3-Clause
"""Whole models: twenty training steps on npusim give the CPU's losses and weights bit for bit, and
leave no memory behind.

No dropout, and the same foreach/fused flags on both sides: those choose other kernels.
"""

import copy
import gc
import sys

import pytest
import torch
import torch.nn.functional as F
from oracle import compare
from processes import python
from small_models import LastStep
from torch import nn

import torch_npusim  # noqa: F401  (for where autoload has stepped back)

DEV = "npusim"
STEPS = 20


class SmallTransformer(nn.Module):
    """Embedding, two encoder layers with a causal mask, and a linear head."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 4)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], tokens.device)
        return self.head(self.encoder(self.embed(tokens), mask=mask, is_causal=True).mean(1))


def mlp():
    return nn.Sequential(
        nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 4)
    )


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 4),
    )


MODELS = {
    "mlp": (mlp, lambda g: torch.randn(16, 10, generator=g)),
    "cnn": (cnn, lambda g: torch.randn(16, 1, 12, 12, generator=g)),
    "lstm": (lambda: LastStep(8, 16, 4), lambda g: torch.randn(16, 9, 8, generator=g)),
    "transformer": (SmallTransformer, lambda g: torch.randint(20, (8, 12), generator=g)),
}
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, foreach=False),
    "sgd foreach": lambda parameters: torch.optim.SGD(parameters, lr=0.05, foreach=True),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, foreach=False),
    "adamw fused": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, fused=True),
}


def train(model, batches, make_optimizer, device):
    """The loss of every step, and the trained state on the host."""
    model = copy.deepcopy(model).to(device)
    optimizer = make_optimizer(model.parameters())
    losses = []
    for inputs, labels in batches:
        loss = F.cross_entropy(model(inputs.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: value.cpu() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", MODELS)
def test_twenty_steps(name, optimizer):
    make_model, make_inputs = MODELS[name]
    model = make_model()
    generator = torch.Generator().manual_seed(1)
    batches = []
    for _ in range(STEPS):
        inputs = make_inputs(generator)
        batches.append((inputs, torch.randint(4, (len(inputs),), generator=generator)))
    gc.collect()  # what other tests have left
    before = torch.npusim.memory_allocated()

    expected_losses, expected_state = train(model, batches, OPTIMIZERS[optimizer], "cpu")
    losses, state = train(model, batches, OPTIMIZERS[optimizer], DEV)

    assert losses == expected_losses
    assert losses[-1] != losses[0]
    for key, value in expected_state.items():
        assert torch.equal(state[key], value), key
    gc.collect()
    torch.npusim.synchronize()
    assert torch.npusim.memory_allocated() == before


@pytest.mark.parametrize("name", MODELS)
def test_evaluation(name):
    make_model, make_inputs = MODELS[name]
    inputs = make_inputs(torch.Generator().manual_seed(1))
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            compare(nn.Module.__call__, make_model().eval(), inputs)


def leave_nothing():
    """Train every model; then nothing is allocated, nor reserved once the cache is empty."""
    generator = torch.Generator().manual_seed(1)
    for make_model, make_inputs in MODELS.values():
        inputs = make_inputs(generator)
        batch = (inputs, torch.zeros(len(inputs), dtype=torch.long))
        train(make_model(), [batch] * 2, OPTIMIZERS["adamw"], DEV)
    gc.collect()
    torch.npusim.synchronize()
    assert torch.npusim.max_memory_allocated() > 0
    assert torch.npusim.memory_allocated() == 0
    torch.npusim.empty_cache()
    assert torch.npusim.memory_reserved() == 0


def test_nothing_is_left_in_memory():
    """In a process of its own: other tests may hold tensors."""
    path = ":".join(filter(None, sys.path))
    script = "from ops import test_models; test_models.leave_nothing()"
    done = python("-c", script, variables={"PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
