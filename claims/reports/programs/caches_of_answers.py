# SPDX-License-Identifier: BSD-3-Clause
"""Each answer keeps the KV cache that it was made with.

Report: https://github.com/generative-computing/mellea/pull/544
Resolution: drop past_key_values from what is kept of an answer.
"""

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 160 << 20
CAUSE = "growth"
ADVICE = r"Drop.*update"

transformers = library(
    "transformers/cache_utils.py",
    """
import torch

class DynamicCache:
    def __init__(self):
        self.keys = None

    def update(self, keys):
        self.keys = keys.clone() if self.keys is None else torch.cat((self.keys, keys))
""",
)


def program(mended: bool) -> None:
    """Answers 60 questions."""
    model, answers = nn.Sequential(nn.Linear(64, 256), nn.Linear(256, 64)).to("cuda"), []
    with torch.no_grad():
        for _ in range(60):
            cache = transformers.DynamicCache()
            cache.update(torch.randn(12000, 64, device="cuda"))
            for _ in range(6):
                cache.update(model(torch.randn(64, 64, device="cuda")))
            answers.append(None if mended else cache)
