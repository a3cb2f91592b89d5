# SPDX-License-Identifier: BSD-3-Clause
"""States of metrics are never reset, and hold the predictions of all epochs.

Report: https://github.com/NRCan/geo-deep-learning/issues/582
Resolution: reset the metrics at the end of each validation.
"""

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 128 << 20
CAUSE = "growth"
ADVICE = r"Drop.*update"

torchmetrics = library(
    "torchmetrics/classification/jaccard.py",
    """
class Metric:
    def __init__(self):
        self.preds = []

    def update(self, preds):
        self.preds.append(preds.argmax(-1))

    def reset(self):
        self.preds.clear()
""",
)


def program(mended: bool) -> None:
    """Validates after each of 40 epochs."""
    model, metric = nn.Linear(16, 8).to("cuda"), torchmetrics.Metric()
    for _ in range(40):
        with torch.no_grad():
            for _ in range(8):
                metric.update(model(torch.randn(65536, 16, device="cuda")))
        if mended:
            metric.reset()
