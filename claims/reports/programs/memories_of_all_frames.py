# SPDX-License-Identifier: BSD-3-Clause
"""A tracker of objects keeps features and masks of each frame of a long video.

Report: https://github.com/facebookresearch/sam2/issues/196
Resolution: delete what is older than the frames that are looked back at, or offload the state.
"""

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 160 << 20
CAUSE = "growth"
ADVICE = r"Drop|\.cpu\(\)"

sam2 = library(
    "sam2/sam2_video_predictor.py",
    """
import torch

class SAM2VideoPredictor:
    def __init__(self, encoder, decoder, num_maskmem=7):
        self.encoder, self.decoder, self.num_maskmem = encoder, decoder, num_maskmem

    def propagate_in_video(self, state, frames, forgets):
        outputs = state["non_cond_frame_outputs"]
        for index, frame in enumerate(frames):
            outputs[index] = self._run_single_frame_inference(outputs, index, frame.to("cuda"))
            if forgets:
                outputs.pop(index - self.num_maskmem, None)
            yield index, (outputs[index]["pred_masks"] > 0).cpu()

    def _run_single_frame_inference(self, outputs, index, frame):
        image = self.encoder(frame)
        for past in range(max(0, index - self.num_maskmem), index):
            image = image + 0.1 * outputs[past]["maskmem_features"].float()
        masks = self.decoder(image)
        return {"maskmem_features": image.to(torch.bfloat16), "pred_masks": masks}
""",
)


def program(mended: bool) -> None:
    """Tracks objects over 120 frames, which lie on the host."""
    encoder = nn.Sequential(nn.Conv2d(3, 32, 8, stride=8), nn.GELU(), nn.Conv2d(32, 64, 1))
    predictor = sam2.SAM2VideoPredictor(encoder.to("cuda"), nn.Conv2d(64, 3, 1).to("cuda"))
    state = {"non_cond_frame_outputs": {}}
    frames = (torch.rand(1, 3, 1024, 1024) for _ in range(120))
    with torch.inference_mode():
        for _ in predictor.propagate_in_video(state, frames, mended):
            pass
