# SPDX-License-Identifier: BSD-3-Clause
"""The scores of an eager attention are larger than the device.

Report: https://github.com/studio-dots-ai/dots.ocr/issues/196
Resolution: install flash attention: no whole matrix of scores exists then.
"""

import torch

from claims.reports.library import library

MEMORY = 256 << 20
CAUSE = "too large, however it is placed"
ADVICE = r"one request.*(attention|sequence)"
TOKENS = 8192

vision = library(
    "vllm/model_executor/models/dots_ocr.py",
    """
class DotsVisionAttention:
    def forward(self, query, key, value):
        scores = query @ key.transpose(-1, -2)
        return scores.softmax(-1) @ value
""",
)


def program(mended: bool) -> None:
    """Asks for a score of each pair of tokens, or for those of 256 queries at a time."""
    attention = vision.DotsVisionAttention()
    query, key, value = (torch.randn(2, TOKENS, 16, device="cuda") for _ in range(3))
    for part in query.split(256 if mended else TOKENS, 1):
        attention.forward(part, key, value)
