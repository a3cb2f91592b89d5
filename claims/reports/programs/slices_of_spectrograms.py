# SPDX-License-Identifier: BSD-3-Clause
"""A book is read aloud in batches, and a small slice of each result keeps the whole of it.

Report: https://github.com/SWivid/F5-TTS/pull/851
Resolution: delete the result: the memory in use stays the same from batch to batch.
"""

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 160 << 20
CAUSE = "growth"
ADVICE = r"[Dd]rop"

f5_tts = library(
    "f5_tts/infer/utils_infer.py",
    """
import torch

def infer_batch_process(model, batches, deletes):
    mels = []
    with torch.inference_mode():
        for batch in batches:
            generated = model(batch)
            mel = generated[:, -40:]
            mels.append(mel.clone() if deletes else mel)
            del generated
    return mels
""",
)


def program(mended: bool) -> None:
    """Reads 100 batches."""
    model = nn.Sequential(nn.Linear(100, 512), nn.GELU(), nn.Linear(512, 100)).to("cuda").eval()
    batches = (torch.randn(1, 4000 + 13 * step, 100, device="cuda") for step in range(100))
    f5_tts.infer_batch_process(model, batches, mended)
