# SPDX-License-Identifier: BSD-3-Clause
"""A speech decoder captured for validation keeps its graph's memory while training goes on.

Report: https://github.com/NVIDIA-NeMo/Speech/pull/8972
Resolution: disable the decoder's graphs as a training epoch starts: they release no memory.
"""

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 300 << 20
CAUSE = "a cache that another pool holds"
ADVICE = r"reset the graphs"

nemo = library(
    "nemo/collections/asr/parts/submodules/rnnt_loop_labels_computer.py",
    """
import torch

class GreedyBatchedRNNTLoopLabelsComputer:
    def __init__(self, joint):
        self.joint, self.graph = joint, None

    def _graph_compile(self, encoded):
        self.encoded = encoded.clone()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.labels = self.joint(self.encoded).argmax(-1)

    def __call__(self, encoded):
        if self.graph is None:
            self._graph_compile(encoded)
        self.encoded.copy_(encoded)
        self.graph.replay()
        return self.labels

    def disable_cuda_graphs(self):
        self.graph = self.encoded = self.labels = None
""",
)


def program(mended: bool) -> None:
    """Trains two epochs, with a validation after each."""
    encoder = nn.Sequential(nn.Linear(80, 1024), nn.SiLU(), nn.Linear(1024, 256)).to("cuda")
    joint = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 512)).to("cuda")
    decoder = nemo.GreedyBatchedRNNTLoopLabelsComputer(joint)
    optimizer = torch.optim.SGD([*encoder.parameters(), *joint.parameters()], lr=0.01)
    for batches in ((3000, 5000, 4000), (5500, 4500, 10000)):
        if mended:
            decoder.disable_cuda_graphs()
        for frames in batches:
            loss = joint(encoder(torch.randn(frames, 80, device="cuda"))).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            for _ in range(2):
                decoder(encoder(torch.randn(8000, 80, device="cuda")))
