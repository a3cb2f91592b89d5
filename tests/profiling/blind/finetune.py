# SPDX-License-Identifier: BSD-3-Clause
"""An encoder is tuned with all layers checkpointed; most memory is free. Cause: recomputation."""

import functools

import torch
from torch.utils.checkpoint import checkpoint


class Encoder(torch.nn.Module):
    def __init__(self, depth=8, width=1024, heads=16):
        super().__init__()
        layer = functools.partial(
            torch.nn.TransformerEncoderLayer,
            width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True,
        )  # fmt: skip
        self.layers = torch.nn.ModuleList(layer() for _ in range(depth))
        self.save_memory = True

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.save_memory else layer(x)
        return x


class Tuner:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def train_step(self, batch):
        out = self.model(batch)
        out.float().pow(2).mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    tuner = Tuner(Encoder().to("npusim", torch.bfloat16))
    batch = torch.ones(32, 512, 1024, device="npusim", dtype=torch.bfloat16)
    for _ in range(3):
        tuner.train_step(batch)
