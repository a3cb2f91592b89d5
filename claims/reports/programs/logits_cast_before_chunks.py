# SPDX-License-Identifier: BSD-3-Clause
"""Logits are cast to float32 as a whole, before the loop over chunks.

Report: https://github.com/NVIDIA-NeMo/RL/issues/2882
Resolution: cast one chunk of the sequence at a time.
"""

import torch

MEMORY = 320 << 20
CAUSE = "the peak of one step"
ADVICE = r"chunk"


def program(mended: bool) -> None:
    """Takes the best tokens of each position of three sequences."""
    head = torch.randn(64, 16000, device="cuda", dtype=torch.bfloat16)
    for length in (512, 2048, 4096):
        logits = torch.randn(length, 64, device="cuda", dtype=torch.bfloat16) @ head
        whole = logits if mended else logits.to(torch.float32)
        best = [whole[i : i + 256].to(torch.float32).topk(64) for i in range(0, length, 256)]
        del logits, whole, best
