# SPDX-License-Identifier: BSD-3-Clause
"""A trainer's weights are brought to the device after a rollout, though they were on the host.

Report: https://github.com/modelscope/ms-swift/pull/10109
Resolution: bring back those alone that were offloaded.
"""

import torch
from torch import nn

MEMORY = 150 << 20
CAUSE = "too large, however it is placed"
ADVICE = r"[Oo]ffload|[Uu]nload"


class Rollout:
    """An engine with weights and a cache."""

    def __init__(self) -> None:
        self.model = Rollout.weights().to(torch.bfloat16).to("cuda")
        shape = (2, 24 << 19)
        self.kv_cache = torch.zeros(shape, dtype=torch.bfloat16, device="cuda")

    @staticmethod
    def weights() -> nn.Sequential:
        """Returns 80 MiB of float32."""
        return nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(20)))

    def generate(self) -> None:
        """Answers."""
        with torch.no_grad():
            self.model(torch.randn(32, 1024, device="cuda", dtype=torch.bfloat16))


def program(mended: bool) -> None:
    """Makes a rollout before the trainer is prepared."""
    actor, engine = Rollout.weights(), Rollout()
    engine.generate()
    if not mended:
        actor.to("cuda")
    engine.generate()
