# SPDX-License-Identifier: BSD-3-Clause
"""A client embeds 256 texts at once on a device that models for serving fill.

Report: https://github.com/justincasher/lean-explore/pull/70
Resolution: batch_size from 256 to 32.
"""

import torch
from torch import nn

MEMORY = 384 << 20
CAUSE = "the peak of one step"
ADVICE = r"smaller batch"


def program(mended: bool) -> None:
    """Embeds a query, and then an index of 512 texts."""
    served = [nn.Linear(2048, 2048, bias=False).to("cuda") for _ in range(8)]
    embedder = nn.Sequential(nn.Linear(64, 2048), nn.GELU(), nn.Linear(2048, 64)).to("cuda")
    texts, size = torch.randn(512, 96, 64), 32 if mended else 256
    with torch.no_grad():
        for batch in (texts[:1], texts[:4], *texts.split(size)):
            embedder(batch.to("cuda")).mean(1).cpu()
    del served
