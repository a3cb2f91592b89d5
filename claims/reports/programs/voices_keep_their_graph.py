# SPDX-License-Identifier: BSD-3-Clause
"""A speech server caches what it computes of each voice, with the graph of its encoders.

Report: https://github.com/devnen/Chatterbox-TTS-Server/pull/166
Resolution: torch.inference_mode() around the call.
"""

import random

import torch
from torch import nn

MEMORY = 160 << 20
CAUSE = "growth"
ADVICE = r"no_grad|inference_mode|detach"


class Engine:
    """Speaks with voices, which it keeps."""

    def __init__(self) -> None:
        layers = [nn.Conv1d(80, 256, 3, padding=1)]
        for _ in range(3):
            layers += [nn.GELU(), nn.Conv1d(256, 256, 3, padding=1)]
        self.encoder = nn.Sequential(*layers).to("cuda").eval()
        self.decoder = nn.Linear(256, 512).to("cuda").eval()
        self.conds_cache: dict[int, torch.Tensor] = {}

    def synthesize(self, voice: int, tokens: int, guards: bool) -> torch.Tensor:
        """Returns speech of (tokens, 512) on the host."""
        if voice not in self.conds_cache:
            reference = torch.randn(1, 80, 800, device="cuda")
            with torch.inference_mode(guards):
                self.conds_cache[voice] = self.encoder(reference)
        with torch.inference_mode():
            style = self.conds_cache[voice].mean(-1)
            return self.decoder(torch.randn(tokens, 256, device="cuda") + style).cpu()


def program(mended: bool) -> None:
    """Answers 150 requests for 40 voices."""
    draw, engine = random.Random(3), Engine()
    for _ in range(150):
        engine.synthesize(draw.randrange(40), draw.randint(100, 900), mended)
