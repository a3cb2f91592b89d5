# SPDX-License-Identifier: BSD-3-Clause
"""Full attention over half an hour of audio asks for more than the device has.

Report: https://github.com/BasedHardware/omi/pull/8428
Resolution: local attention where the audio is long.
"""

import torch

from claims.reports.library import library

MEMORY = 192 << 20
CAUSE = "too large, however it is placed"
ADVICE = r"attention"

nemo = library(
    "nemo/collections/asr/parts/submodules/multi_head_attention.py",
    """
import torch

def rel_pos_attention(x):
    return torch.softmax(x @ x.T, dim=-1) @ x

def rel_pos_local_attn(x, context=128):
    around = [x[max(0, i - context) : i + 2 * context] for i in range(0, len(x), context)]
    return torch.cat([rel_pos_attention(part)[-context:] for part in around])
""",
)


def program(mended: bool) -> None:
    """Transcribes clips of 4 to 1800 seconds."""
    with torch.no_grad():
        for seconds in (15, 8, 4, 1800):
            frames = torch.randn(seconds * 5, 64, device="cuda")
            is_local = mended and seconds > 600
            (nemo.rel_pos_local_attn if is_local else nemo.rel_pos_attention)(frames)
