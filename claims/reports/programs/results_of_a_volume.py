# SPDX-License-Identifier: BSD-3-Clause
"""Predictions of all patches of a large volume are gathered on the device.

Report: https://github.com/MIC-DKFZ/nnUNet/issues/2912
Resolution: gather them on the host (perform_everything_on_device=False).
"""

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 168 << 20
CAUSE = "the peak of one step"
ADVICE = r"host|CPU|\.cpu\(\)"

nnunet = library(
    "nnunetv2/inference/predict_from_raw_data.py",
    """
import torch

def _internal_predict_sliding_window_return_logits(network, data, patch, results_device):
    predicted_logits = torch.zeros((24, *data.shape), dtype=torch.half, device=results_device)
    n_predictions = torch.zeros(data.shape, dtype=torch.half, device=results_device)
    for start in range(0, data.shape[0] - patch + 1, patch // 2):
        prediction = network(data[None, None, start : start + patch, :patch, :patch])[0]
        predicted_logits[:, start : start + patch, :patch, :patch] += prediction.to(results_device)
        n_predictions[start : start + patch, :patch, :patch] += 1
    return predicted_logits.div_(n_predictions.clamp(min=1))
""",
)


def program(mended: bool) -> None:
    """Predicts two volumes, the second of which is larger."""
    results = "cpu" if mended else "cuda"
    network = nn.Sequential(nn.Conv3d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv3d(8, 24, 1)).to(
        "cuda"
    )
    with torch.no_grad():
        for depth in (64, 196):
            data = torch.randn(depth, 128, 128, device="cuda")
            nnunet._internal_predict_sliding_window_return_logits(network, data, 32, results)
