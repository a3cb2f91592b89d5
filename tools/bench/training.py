# SPDX-License-Identifier: BSD-3-Clause
"""Training steps of small models: forward, loss, backward, optimizer; flags as they default.

A step is one call: `step()`. Models and data of both devices are equal.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from small_models import LastStep, ResidualBlock
from torch import nn
from torch.nn import functional

Step = Callable[[], torch.Tensor]


def _mlp() -> tuple[nn.Module, torch.Tensor]:
    layers = [nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10)]
    return nn.Sequential(*layers), torch.randn(128, 784)


def _cnn() -> tuple[nn.Module, torch.Tensor]:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1),
        ResidualBlock(16, 16),
        ResidualBlock(16, 32, 2),
        ResidualBlock(32, 64, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )
    return model, torch.randn(16, 3, 32, 32)


def _small_mlp() -> tuple[nn.Module, torch.Tensor]:
    layers = [nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 10)]
    return nn.Sequential(*layers), torch.randn(8, 16)


def _transformer(layers: int) -> tuple[nn.Module, torch.Tensor]:
    layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    head = nn.Sequential(nn.Flatten(), nn.Linear(64 * 128, 10))
    return nn.Sequential(encoder, head), torch.randn(8, 64, 128)


def _lstm() -> tuple[nn.Module, torch.Tensor]:
    return LastStep(64, 128, 10), torch.randn(16, 32, 64)


WIDE = ("MLP", "ResNet-style CNN", "transformer, 4 layers", "LSTM")  # 128 and more
SMALL = "MLP of 8x16"
OBSERVED = (SMALL, "transformer, 2 layers")  # with and without the race detector
MODELS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "MLP": _mlp,
    "ResNet-style CNN": _cnn,
    "transformer, 4 layers": lambda: _transformer(4),
    "LSTM": _lstm,
    SMALL: _small_mlp,
    "transformer, 2 layers": lambda: _transformer(2),
}


@dataclass
class _Training:
    """A model with its data, classes and optimizer on one device."""

    model: nn.Module
    data: torch.Tensor
    target: torch.Tensor
    optimizer: torch.optim.Optimizer

    def loss(self) -> torch.Tensor:
        return functional.cross_entropy(self.model(self.data), self.target)


def _training(name: str, device: str) -> _Training:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, data = MODELS[name]()
        target = torch.randint(10, data.shape[:1])
    model, data, target = model.to(device), data.to(device), target.to(device)
    return _Training(model, data, target, torch.optim.AdamW(model.parameters(), lr=1e-4))


def training_step(name: str, device: str) -> Step:
    """Returns a function that trains model `name` on `device` by one step and returns the loss."""
    training = _training(name, device)

    @torch.enable_grad()
    def step() -> torch.Tensor:
        training.optimizer.zero_grad()
        loss = training.loss()
        torch.autograd.backward(loss)
        training.optimizer.step()
        return loss.detach()

    return step


def parts_of_a_step(name: str, device: str) -> dict[str, Callable[[], object]]:
    """Returns functions that do one part of such a step again and again."""
    training = _training(name, device)
    with torch.enable_grad():
        loss = training.loss()

    def backward() -> None:
        training.optimizer.zero_grad()
        torch.autograd.backward(loss, retain_graph=True)

    backward()
    return {
        "forward and loss": torch.enable_grad()(training.loss),
        "backward": backward,
        "optimizer": training.optimizer.step,
    }
