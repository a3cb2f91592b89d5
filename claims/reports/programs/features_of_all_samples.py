# SPDX-License-Identifier: BSD-3-Clause
"""A detector of unknown inputs keeps features, logits and normalized features of all of ImageNet.

Report: https://github.com/kkirchheim/pytorch-ood/pull/159
Resolution: two passes over chunks, first the energies, then the bank that they scale.
"""

import torch

from claims.reports.library import library

MEMORY = 192 << 20
CAUSE = "the peak of one step"
ADVICE = r"chunk|smaller batch"

pytorch_ood = library(
    "pytorch_ood/detector/nnguide.py",
    """
import torch

def fit_features(features, weight, batch_size):
    bank = []
    for part in features.split(batch_size):
        z = part.to("cuda")
        energies = (z @ weight).logsumexp(-1, keepdim=True)
        normalized = z / z.norm(dim=-1, keepdim=True)
        bank.append((normalized * energies).cpu())
    return torch.cat(bank)
""",
)


def program(mended: bool) -> None:
    """Fits to a small set, and to a large one."""
    weight = torch.randn(512, 200, device="cuda")
    for count in (4000, 40000):
        features = torch.randn(count, 512)
        pytorch_ood.fit_features(features, weight, 4096 if mended else count)
