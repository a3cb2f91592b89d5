# SPDX-License-Identifier: BSD-3-Clause
"""A scan of a head is segmented window by window, and stitched on the device.

Report: https://github.com/DCBIA-OrthoLab/SlicerAutomatedDentalTools/issues/66
Resolution: sw_device="cuda", device="cpu": computed there, stitched on the host.
"""

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 160 << 20
CAUSE = "the peak of one step"
ADVICE = r"host|[Oo]ffload|\.cpu\(\)"

monai = library(
    "monai/inferers/utils.py",
    """
import torch

def sliding_window_inference(inputs, roi_size, predictor, classes, device):
    output_image = torch.zeros((1, classes, *inputs.shape[2:]), device=device)
    count_map = torch.zeros((1, 1, *inputs.shape[2:]), device=device)
    for x in range(0, inputs.shape[2] - roi_size + 1, roi_size // 2):
        for y in range(0, inputs.shape[3] - roi_size + 1, roi_size // 2):
            window = slice(x, x + roi_size), slice(y, y + roi_size)
            seg_prob = predictor(inputs[:, :, window[0], window[1]].to("cuda")).to(device)
            output_image[:, :, window[0], window[1]] += seg_prob
            count_map[:, :, window[0], window[1]] += 1
    return output_image / count_map
""",
)


def program(mended: bool) -> None:
    """Segments a scan of 176 x 176 x 96."""
    device = "cpu" if mended else "cuda"
    network = nn.Sequential(nn.Conv3d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv3d(8, 6, 1))
    network = network.to("cuda").eval()
    with torch.no_grad():
        scan = torch.randn(1, 1, 176, 176, 96, device="cuda")
        monai.sliding_window_inference(scan, 64, network, 6, device).argmax(1).cpu()
