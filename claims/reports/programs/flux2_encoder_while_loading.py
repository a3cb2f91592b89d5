# SPDX-License-Identifier: BSD-3-Clause
"""A text encoder in float32 does not fit while it loads.

Report: https://github.com/vllm-project/vllm-omni/issues/2738
Resolution: load the encoder in bfloat16, or leave it on the host with CPU offload.
"""

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 256 << 20
CAUSE = "too large, however it is placed"
ADVICE = r"smaller dtype.*offload"

pipeline = library(
    "vllm_omni/diffusion/models/flux2/pipeline_flux2.py",
    """
class Flux2Pipeline:
    def __init__(self, text_encoder, dtype):
        self.text_encoder = text_encoder.to(device="cuda", dtype=dtype)
""",
)


def program(mended: bool) -> None:
    """Loads 320 MiB of float32 in the dtype of the file, or in half the bytes."""
    layers = [nn.utils.skip_init(nn.Linear, 1024, 1024, bias=False) for _ in range(80)]
    dtype = torch.bfloat16 if mended else torch.float32
    pipeline.Flux2Pipeline(nn.Sequential(*layers), dtype)
