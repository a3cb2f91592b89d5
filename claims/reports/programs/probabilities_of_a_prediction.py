# SPDX-License-Identifier: BSD-3-Clause
"""A classifier of species keeps the probabilities of each batch of images until the last.

Report: https://github.com/Imageomics/pybioclip/issues/145
Resolution: tensor.detach().cpu() for the probabilities of each batch.
"""

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 16 << 30
CAUSE = "growth"
ADVICE = r"\.cpu\(\)"
DRY = True

bioclip = library(
    "bioclip/predict.py",
    """
import torch

def create_probabilities_for_images(encode, txt_embeddings, images, to_cpu):
    result = {}
    for key, batch in images:
        features = torch.nn.functional.normalize(encode(batch), dim=-1)
        probs = torch.softmax(100 * features @ txt_embeddings, -1)
        result[key] = probs.cpu()[:, :5].clone() if to_cpu else probs
    return result
""",
)


def program(mended: bool) -> None:
    """Predicts 4800 images in batches of 40, over 868 thousand taxa."""
    layers = [nn.Linear(1024, 1024, device="cuda") for _ in range(96)]
    encoder = nn.Sequential(nn.Conv2d(3, 1024, 14, 14, device="cuda"), nn.Flatten(2), nn.GELU())
    tower = nn.Sequential(*layers, nn.Linear(1024, 768, device="cuda"))
    taxa = torch.zeros(768, 868_000, device="cuda")

    def encode(batch: torch.Tensor) -> torch.Tensor:
        return tower(encoder(batch).transpose(1, 2)).mean(1)

    images = ((number, torch.zeros(40, 3, 224, 224, device="cuda")) for number in range(120))
    with torch.no_grad():
        bioclip.create_probabilities_for_images(encode, taxa, images, mended)
