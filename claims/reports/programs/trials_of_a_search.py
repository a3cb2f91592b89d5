# SPDX-License-Identifier: BSD-3-Clause
"""Trials of a search for hyperparameters leave their models and optimizers on the device.

Report: https://github.com/huggingface/transformers/pull/35440
Resolution: drop the trainer's model before the next trial, and call gc.collect().
"""

import gc

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 224 << 20
CAUSE = "growth"
ADVICE = r"gc\.collect|Drop"

transformers = library(
    "transformers/trainer.py",
    """
import torch

class Trainer:
    def __init__(self, model, lr):
        self.model = model.to("cuda")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr)
        self.callbacks = [self.on_log]

    def on_log(self, loss):
        return loss

    def train(self, batches):
        for batch in batches:
            loss = self.training_step(batch.to("cuda"))
            self.callbacks[0](loss)

    def training_step(self, batch):
        loss = self.model(batch).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()
""",
)


def program(mended: bool) -> None:
    """Makes eight trials of three steps."""
    gc.disable()
    for trial in range(8):
        model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512))
        trainer = transformers.Trainer(model, 10.0**-trial)
        trainer.train(torch.randn(256, 512) for _ in range(3))
        del trainer, model
        if mended:
            gc.collect()
    gc.enable()
