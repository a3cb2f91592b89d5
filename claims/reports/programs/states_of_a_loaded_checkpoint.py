# SPDX-License-Identifier: BSD-3-Clause
"""After a resume the moments are on the CPU, and the state that was read is on the device still.

Report: https://github.com/PrimeIntellect-ai/prime-rl/pull/2154
Resolution: clear the references of the state that was loaded.
"""

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 24 << 30
CAUSE = "the peak of one step"
ADVICE = r"[Ff]ree|CPU|[Dd]rop|[Oo]ffload"
DRY = True

dcp = library(
    "torch/distributed/checkpoint/state_dict_loader.py",
    """
import torch

def load(parameters):
    moments = [torch.zeros_like(p, dtype=torch.float32) for p in parameters for _ in range(2)]
    return {"optimizer": moments, "step": 1000}
""",
)


class AppState:
    """The state of a trainer that keeps moments on the CPU."""

    def load_state_dict(self, state: dict[str, object], clears: bool) -> None:
        """Copies the moments to the CPU."""
        self.steps = state["step"]
        if clears:
            state.clear()


def program(mended: bool) -> None:
    """Resumes a model of 1.2 billion parameters, and takes a step."""
    make = {"bias": False, "dtype": torch.bfloat16, "device": "cuda"}
    model = nn.ModuleList(nn.Linear(2048, 2048, **make) for _ in range(280))
    state_dict = dcp.load(list(model.parameters()))
    AppState().load_state_dict(state_dict, mended)
    for _ in range(3):
        x = torch.zeros(12288, 2048, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        for layer in model:
            x = layer(x)
        x.float().square().mean().backward()
        model.zero_grad()
