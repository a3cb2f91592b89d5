# SPDX-License-Identifier: BSD-3-Clause
"""A recording of 90 minutes passes the encoder in one batch, beside the pool for keys and values.

Report: https://github.com/sgl-project/sglang-omni/pull/1426
Resolution: go through the chunks of the recording in bounded batches.
"""

import torch

from claims.reports.library import library

MEMORY = 256 << 20
CAUSE = "the peak of one step"
ADVICE = r"chunk|smaller batch"

memory_pool = library(
    "sglang_omni/mem_cache/memory_pool.py",
    """
import torch

def create_kv_buffers(layers, bytes):
    return [torch.zeros(bytes, dtype=torch.int8, device="cuda") for _ in range(layers)]
""",
)
encoder = library(
    "sglang_omni/models/moss_transcribe_diarize/encoder.py",
    """
import torch
from torch import nn

class WhisperEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(80, 192, 3, padding=1)
        self.up, self.down = nn.Linear(192, 768), nn.Linear(768, 192)

    def forward(self, chunks):
        x = self.conv(chunks).transpose(1, 2)
        return x + self.down(nn.functional.gelu(self.up(x)))
""",
)


def program(mended: bool) -> None:
    """Encodes recordings of 3, 6 and 90 minutes, in chunks of 30 seconds."""
    pool = memory_pool.create_kv_buffers(8, 18 << 20)
    model = encoder.WhisperEncoder().to("cuda").eval()
    with torch.inference_mode():
        for minutes in (3, 6, 90):
            chunks = torch.randn(2 * minutes, 80, 150, device="cuda")
            torch.cat([model(part) for part in chunks.split(8 if mended else len(chunks))])
    del pool
