# SPDX-License-Identifier: BSD-3-Clause
"""Cells of a notebook, run one after the other. The third keeps every loss, and its graph."""

import torch

CELLS = (
    "import torch\nfrom torch import nn\ntorch.cuda.memory._record_memory_history()",
    "model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(8))).cuda()\nlosses = []",
    "def step():\n"
    "    batch = torch.randn(256, 512, device='cuda')\n"
    "    losses.append(model(batch).square().mean())\n"
    "for _ in range(100):\n"
    "    step()",
)
for number, cell in enumerate(CELLS, 1):
    try:
        exec(compile(cell, f"<cell {number}>", "exec"))
    except torch.OutOfMemoryError as error:
        print(error)
torch.cuda.memory._dump_snapshot("notebook.pickle")
