# SPDX-License-Identifier: BSD-3-Clause
"""A trainer keeps what each prediction step returns, and that is on the device.

Report: https://github.com/mmcdermott/MEDS_EIC_AR/pull/141
Resolution: .cpu() for the returned tensors in predict_step.
"""

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 12 << 30
CAUSE = "growth"
ADVICE = r"\.cpu\(\)"
DRY = True

lightning = library(
    "lightning/pytorch/loops/prediction_loop.py",
    """
def run(module, batches):
    predictions = []
    for batch in batches:
        predictions.append(module.predict_step(batch))
    return predictions
""",
)


class Module(nn.Module):
    """Generates trajectories of events, 2048 tokens each."""

    def __init__(self, to_cpu: bool) -> None:
        super().__init__()
        make = {"bias": False, "dtype": torch.bfloat16, "device": "cuda"}
        self.layers = nn.ModuleList(nn.Linear(4096, 4096, **make) for _ in range(96))
        self.to_cpu = to_cpu

    def predict_step(self, batch: torch.Tensor) -> dict[str, torch.Tensor]:
        """Returns the tokens of a batch."""
        x = torch.zeros(*batch.shape, 4096, dtype=torch.bfloat16, device="cuda")
        for layer in self.layers:
            x = layer(x)
        tokens = x.long()
        return {"tokens": tokens[:1].cpu() if self.to_cpu else tokens}


def program(mended: bool) -> None:
    """Predicts 100 batches of 8 trajectories of 512 events."""
    with torch.inference_mode():
        batches = (torch.zeros(8, 512, device="cuda") for _ in range(100))
        lightning.run(Module(mended), batches)
