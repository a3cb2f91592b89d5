# SPDX-License-Identifier: BSD-3-Clause
"""A transformer trained with and without recomputed activations: the same gradients."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


def gradients(recompute):
    torch.manual_seed(3)
    torch.cuda.manual_seed(3)
    layers = nn.Sequential(
        *(nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True) for _ in range(2))
    ).to("cuda")
    x = torch.randn(2, 5, 16, device="cuda", requires_grad=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        y = recompute(layers, x)
    y.float().square().mean().backward()
    return [x.grad, *(parameter.grad for parameter in layers.parameters())]


plain = gradients(lambda layers, x: layers(x))
for name, recompute in {
    "checkpoint": lambda layers, x: checkpoint(layers, x, use_reentrant=False),
    "reentrant": lambda layers, x: checkpoint(layers, x, use_reentrant=True),
    "sequential": lambda layers, x: checkpoint_sequential(layers, 2, x, use_reentrant=False),
}.items():
    same = all(torch.equal(a, b) for a, b in zip(plain, gradients(recompute), strict=True))
    print(name, same)
