# SPDX-License-Identifier: BSD-3-Clause
"""A transcription server's requests end in reference cycles, with audio and features on the device.

Report: https://github.com/Nyralei/whisperx-api-server/pull/9
Resolution: delete the audio, and call gc.collect() after each request.
"""

import gc

import torch
from torch import nn

MEMORY = 128 << 20
CAUSE = "growth"
ADVICE = r"gc\.collect\(\)"


class Request:
    """A request that its callback refers to."""

    def __init__(self, seconds: int) -> None:
        """Holds the features of so much audio."""
        self.features = torch.randn(80, 500 * seconds, device="cuda")
        self.done = lambda: self.features


def program(mended: bool) -> None:
    """Answers a hundred requests."""
    gc.disable()
    model = nn.Sequential(nn.Conv1d(80, 64, 3), nn.GELU(), nn.Conv1d(64, 32, 3)).to("cuda")
    with torch.no_grad():
        for number in range(100):
            request = Request(10 + number % 7)
            model(request.features)
            del request
            if mended:
                gc.collect()
    gc.enable()
