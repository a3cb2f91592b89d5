# SPDX-License-Identifier: BSD-3-Clause
"""Features of a projection are written into embeddings by index, under autocast.

Defect: the projection's result is bfloat16, the embeddings are float32, index_put wants one dtype.
Passes on the CPU: training there does not use autocast.
Kind: https://github.com/huggingface/transformers/pull/47691
"""

import torch
from torch import nn


def _merge(device: str, cast: bool) -> None:
    kind = torch.device(device).type
    embedded = torch.zeros(4, 3, device=device)
    places = torch.tensor([0, 2], device=device)
    project = nn.Linear(5, 3).to(device)
    accelerated = kind not in ("cpu", "meta")
    with torch.autocast(kind if accelerated else "cpu", torch.bfloat16, enabled=accelerated):
        features = project(torch.randn(2, 5, device=device))
        embedded[places] = features.to(embedded.dtype) if cast else features


def wrong(device: str) -> None:
    """Writes the features as they come."""
    _merge(device, cast=False)


def fixed(device: str) -> None:
    """Casts them to the dtype of the embeddings."""
    _merge(device, cast=True)
