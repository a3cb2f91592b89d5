# SPDX-License-Identifier: BSD-3-Clause
"""A model of tables predicts a test set of a million rows in one pass.

Report: https://github.com/PriorLabs/TabPFN/pull/774
Resolution: the error says so now: predict the test set in batches.
"""

import torch

from claims.reports.library import library

MEMORY = 160 << 20
CAUSE = "too large, however it is placed"
ADVICE = r"chunk|smaller batch"

tabpfn = library(
    "tabpfn/architectures/base/transformer.py",
    """
import torch
from torch import nn

class PerFeatureTransformer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(1, width), nn.Linear(width, 2)

    def forward(self, x):
        embedded = self.encoder(x.unsqueeze(-1))
        return self.decoder(embedded.mean(1))
""",
)


def program(mended: bool) -> None:
    """Predicts 30 thousand rows of 20 features."""
    model = tabpfn.PerFeatureTransformer(96).to("cuda").eval()
    rows = torch.randn(30000, 20)
    with torch.inference_mode():
        for part in rows.split(1000 if mended else len(rows)):
            model(part.to("cuda")).cpu()
