# SPDX-License-Identifier: BSD-3-Clause
"""A model of tables attends over rows and over columns, for the whole table at once.

Report: https://github.com/automl/TFM-Playground/pull/6
Resolution: num_mem_chunks: attention goes through the table in chunks.
"""

import torch

from claims.reports.library import library

MEMORY = 192 << 20
CAUSE = "the peak of one step"
ADVICE = r"chunk"

tfm = library(
    "tfmplayground/model.py",
    """
import torch
from torch import nn

class TransformerEncoderLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.between_features = nn.MultiheadAttention(width, heads, batch_first=True)
        self.between_rows = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, src, num_mem_chunks):
        src = src + self.attend(self.between_features, src, num_mem_chunks)
        src = src.transpose(0, 1)
        return (src + self.attend(self.between_rows, src, num_mem_chunks)).transpose(0, 1)

    def attend(self, attention, src, num_mem_chunks):
        parts = src.chunk(num_mem_chunks)
        return torch.cat([attention(part, part, part)[0] for part in parts])
""",
)


def program(mended: bool) -> None:
    """Predicts tables of 100, 200 and 1400 rows."""
    layer = tfm.TransformerEncoderLayer(64, 4).to("cuda").eval()
    with torch.no_grad():
        for rows in (100, 200, 1400):
            layer(torch.randn(rows, 24, 64, device="cuda"), 8 if mended else 1)
