# SPDX-License-Identifier: BSD-3-Clause
"""A reader of documents has what a server's static share of the card, and its cache, leave.

Report: https://github.com/sgl-project/sglang/pull/26198
Resolution: an endpoint of the server that calls torch.cuda.empty_cache().
"""

import torch
from torch import nn

MEMORY = 24 << 30
OUTSIDE = 21 << 30
CAUSE = "memory held outside of torch"
ADVICE = r"empty_cache"
DRY = True


def program(mended: bool) -> None:
    """Reads pages of several sizes; `mended`, beside a server that emptied its cache."""
    make = {"dtype": torch.half, "device": "cuda"}
    layers = [nn.Conv2d(3, 256, 4, 4, **make)]
    layers += [nn.Conv2d(256, 256, 3, padding=1, **make) for _ in range(12)]
    encoder, decoder = nn.Sequential(*layers), nn.Linear(8192, 32000, **make)
    with torch.inference_mode():
        for height in (1024, 1536, 4096):
            pages = torch.zeros(12, 3, height, 1024, **make)
            decoder(encoder(pages).mean((2, 3)).repeat(1, 32))
    del mended
