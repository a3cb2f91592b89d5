# SPDX-License-Identifier: BSD-3-Clause
"""An anomaly detector keeps all embeddings of its training beside the coreset that it chose.

Report: https://github.com/open-edge-platform/anomalib/pull/2813
Resolution: delete the embeddings once the coreset is chosen.
"""

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 200 << 20
CAUSE = "the peak of one step"
ADVICE = r"[Ff]ree or offload|Drop"

anomalib = library(
    "anomalib/models/image/patchcore/lightning_model.py",
    """
import torch

class Patchcore:
    def __init__(self, extractor):
        self.extractor, self.embeddings, self.memory_bank = extractor, [], None

    def training_step(self, images):
        self.embeddings.append(self.extractor(images).flatten(2).transpose(1, 2).flatten(0, 1))

    def fit(self, deletes):
        embeddings = torch.vstack(self.embeddings)
        self.memory_bank = embeddings[torch.randperm(len(embeddings))[: len(embeddings) // 20]]
        if deletes:
            self.embeddings.clear()

    def validation_step(self, images):
        features = self.extractor(images).flatten(2).transpose(1, 2).flatten(0, 1)
        return torch.cdist(features, self.memory_bank).amin(1)
""",
)


def program(mended: bool) -> None:
    """Trains on 40 batches of four images, and validates four more."""
    extractor = nn.Sequential(nn.Conv2d(3, 96, 8, stride=8), nn.ReLU(), nn.Conv2d(96, 128, 1))
    model = anomalib.Patchcore(extractor.to("cuda"))
    with torch.no_grad():
        for _ in range(40):
            model.training_step(torch.randn(4, 3, 256, 256, device="cuda"))
        model.fit(mended)
        for _ in range(4):
            model.validation_step(torch.randn(4, 3, 256, 256, device="cuda")).cpu()
