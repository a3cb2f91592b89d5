# SPDX-License-Identifier: BSD-3-Clause
"""A moving average of all weights lies on the device beside the model that is trained.

Report: https://github.com/bghira/SimpleTuner/pull/517
Resolution: offload the average to the host, and update it every few steps.
"""

import torch
from torch import nn

MEMORY = 220 << 20
CAUSE = "the peak of one step"
ADVICE = r"[Oo]ffload"


class Average:
    """Averages parameters on a device."""

    def __init__(self, model: nn.Module, device: str) -> None:
        self.shadow = [value.detach().clone().to(device) for value in model.parameters()]

    def step(self, model: nn.Module) -> None:
        """Moves to the parameters."""
        with torch.no_grad():
            for shadow, value in zip(self.shadow, model.parameters(), strict=True):
                shadow.lerp_(value.to(shadow.device), 0.01)


def program(mended: bool) -> None:
    """Takes four steps with 36 MiB of parameters."""
    device = "cpu" if mended else "cuda"
    blocks = [
        nn.Sequential(nn.Linear(512, 1536), nn.SiLU(), nn.Linear(1536, 512)) for _ in range(6)
    ]
    model = nn.Sequential(*blocks).to("cuda")
    average = Average(model, device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for _ in range(4):
        loss = model(torch.randn(256, 512, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        average.step(model)
