# SPDX-License-Identifier: BSD-3-Clause
"""Small models that benchmarks, pages, recordings and tests build, with random weights."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional

NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with batch norm, and a shortcut: the input itself, or a convolution."""

    def __init__(self, before: int, after: int, stride: int = 1, identity: bool = False) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
            nn.BatchNorm2d(after),
        )
        self.shortcut: nn.Module = nn.Identity()
        if not identity:
            self.shortcut = nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps [batch, before, h, w] to [batch, after, h / stride, w / stride]."""
        return functional.relu(self.body(x) + self.shortcut(x))


class LastStep(nn.Module):
    """An LSTM and a linear map of its last output."""

    def __init__(self, inputs: int, width: int, outputs: int, layers: int = 2) -> None:
        super().__init__()
        self.rnn = nn.LSTM(inputs, width, num_layers=layers, batch_first=True)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps [batch, time, inputs] to [batch, outputs]."""
        logits: torch.Tensor = self.head(self.rnn(x)[0][:, -1])
        return logits


def of_transformers(
    family: str, head: str, width: int, feed: int, layers: int, heads: int, **more: Any
) -> nn.Module:
    """`transformers.<family><head>` of these sizes; `more` are other keys of its configuration."""
    import transformers

    config = getattr(transformers, f"{family}Config")(
        hidden_size=width,
        intermediate_size=feed,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        **more,
    )
    return getattr(transformers, f"{family}{head}")(config)
