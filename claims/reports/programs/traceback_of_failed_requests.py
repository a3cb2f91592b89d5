# SPDX-License-Identifier: BSD-3-Clause
"""Requests that fail leave their tensors in the tracebacks, and a small one fails too.

Report: https://github.com/vllm-project/vllm-omni/pull/6385
Resolution: clear the traceback, and call gc.collect().
"""

import torch

MEMORY = 256 << 20
CAUSE = "growth"
ADVICE = r"gc\.collect|[Dd]rop"


def execute(frames: int) -> torch.Tensor:
    """Makes a video of a number of frames."""
    latents = torch.randn(frames, 1024, 256, device="cuda")
    video = latents.repeat(2, 1, 1)
    return video.repeat(4, 1, 1).cpu()


def program(mended: bool) -> None:
    """Serves a small request, two that are too large, and a small one."""
    failures = []
    for frames in (12, 40, 40, 12):
        try:
            execute(frames)
        except torch.OutOfMemoryError as error:
            if frames == 12:
                raise
            failures.append(error.with_traceback(None) if mended else error)
