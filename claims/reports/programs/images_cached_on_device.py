# SPDX-License-Identifier: BSD-3-Clause
"""A trainer of splats caches all images of a large capture on the device before its first step.

Report: https://github.com/nerfstudio-project/nerfstudio/pull/2855
Resolution: cache them on the host (cache_images=cpu), and move each to the device at its step.
"""

import torch

from claims.reports.library import library

MEMORY = 256 << 20
CAUSE = "too large, however it is placed"
ADVICE = r"host|offload|\.cpu\(\)"

nerfstudio = library(
    "nerfstudio/data/datamanagers/full_images_datamanager.py",
    """
import torch

class FullImageDatamanager:
    def __init__(self, dataset, cache_images):
        self.cached_train = self.cache_images(dataset, cache_images)

    def cache_images(self, dataset, cache_images):
        cached = []
        for image in dataset:
            undistorted = image.flip(0).contiguous()
            cached.append(undistorted.to("cuda" if cache_images == "gpu" else "cpu"))
        return cached

    def next_train(self, step):
        return self.cached_train[step % len(self.cached_train)].to("cuda")
""",
)


def program(mended: bool) -> None:
    """Takes 20 steps with 96 images of 3 MiB."""
    dataset = (torch.rand(512, 512, 3) for _ in range(96))
    manager = nerfstudio.FullImageDatamanager(dataset, "cpu" if mended else "gpu")
    colors = torch.rand(512 * 512, 3, device="cuda", requires_grad=True)
    optimizer = torch.optim.Adam([colors], lr=0.01)
    for step in range(20):
        target = manager.next_train(step)
        loss = (torch.sigmoid(colors).view(512, 512, 3) - target).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
