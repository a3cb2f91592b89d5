# SPDX-License-Identifier: BSD-3-Clause
"""The outer product of an alignment has all pairs of tokens times all pairs of channels.

Report: https://github.com/jwohlwend/boltz/pull/43
Resolution: go through the channels in chunks.
"""

import torch

from claims.reports.library import library

MEMORY = 128 << 20
CAUSE = "the peak of one step"
ADVICE = r"chunk"

boltz = library(
    "boltz/model/layers/outer_product_mean.py",
    """
import torch
from torch import nn

class OuterProductMean(nn.Module):
    def __init__(self, c_in, c_hidden, c_out):
        super().__init__()
        self.proj_a, self.proj_b = nn.Linear(c_in, c_hidden), nn.Linear(c_in, c_hidden)
        self.proj_o = nn.Linear(c_hidden * c_hidden, c_out)
        self.c_hidden = c_hidden

    def forward(self, m, chunk_size):
        a, b = self.proj_a(m), self.proj_b(m)
        if chunk_size is None:
            z = torch.einsum("sic,sjd->ijcd", a, b)
            return self.proj_o(z.flatten(2) / len(m))
        z_out = self.proj_o.bias.clone()
        weight = self.proj_o.weight.view(-1, self.c_hidden, self.c_hidden)
        for i in range(0, self.c_hidden, chunk_size):
            z = torch.einsum("sic,sjd->ijcd", a[..., i : i + chunk_size], b)
            z_out = z_out + z.flatten(2) @ weight[:, i : i + chunk_size].flatten(1).T / len(m)
        return z_out
""",
)


def program(mended: bool) -> None:
    """Predicts three complexes, the last of which is larger."""
    chunk_size = 4 if mended else None
    layer = boltz.OuterProductMean(64, 32, 64).to("cuda")
    with torch.no_grad():
        for tokens in (64, 96, 160):
            pairs = torch.zeros(tokens, tokens, 64, device="cuda")
            alignment = torch.randn(48, tokens, 64, device="cuda")
            for _ in range(2):
                pairs = pairs + layer(alignment, chunk_size)
            pairs.mean().item()
