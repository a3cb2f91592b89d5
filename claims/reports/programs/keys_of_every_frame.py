# SPDX-License-Identifier: BSD-3-Clause
"""A model of streamed video keeps keys and values of every frame that it has seen.

Report: https://github.com/Robbyant/lingbot-map/pull/43
Resolution: --keyframe_interval 16: those of every sixteenth frame alone are kept.
"""

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 192 << 20
CAUSE = "growth"
ADVICE = r"Drop|KV cache.*smaller|shorter"

lingbot = library(
    "lingbot_map/layers/attention.py",
    """
import torch
from torch import nn

class StreamAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv, self.past = nn.Linear(width, 3 * width), None

    def forward(self, x, keeps):
        q, k, v = self.qkv(x).view(1, -1, 3, 4, x.shape[-1] // 4).permute(2, 0, 3, 1, 4)
        if self.past is not None:
            k = torch.cat((self.past[0], k), 2)
            v = torch.cat((self.past[1], v), 2)
        if keeps or self.past is None:
            self.past = k, v
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return x + y.transpose(1, 2).reshape(x.shape)
""",
)


def program(mended: bool) -> None:
    """Goes through 90 frames of 256 tokens."""
    interval = 16 if mended else 1
    layers = nn.ModuleList([lingbot.StreamAttention(128) for _ in range(8)]).to("cuda")
    with torch.inference_mode():
        for number in range(90):
            x = torch.randn(1, 256, 128, device="cuda")
            for layer in layers:
                x = layer(x, number % interval == 0)
            x.mean(1).cpu()
