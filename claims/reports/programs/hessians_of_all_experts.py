# SPDX-License-Identifier: BSD-3-Clause
"""A layer with 128 experts is calibrated as a whole, and each expert has its Hessians at once.

Report: https://github.com/vllm-project/llm-compressor/pull/2912
Resolution: sequential targets of one expert each: the Hessians of few are there at a time.
"""

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 16 << 30
CAUSE = "the peak of one step"
ADVICE = r"chunk|parts|smaller"
DRY = True

llmcompressor = library(
    "llmcompressor/modifiers/quantization/gptq/gptq_quantize.py",
    """
import torch

def make_empty_hessian(width):
    return torch.zeros(width, width, dtype=torch.float32, device="cuda")

def accumulate_hessian(inputs, hessian):
    inputs = inputs.float()
    hessian += inputs.T @ inputs
    return hessian
""",
)


def program(mended: bool) -> None:
    """Calibrates one layer with 64 samples of 512 tokens."""
    make = {"bias": False, "dtype": torch.bfloat16, "device": "cuda"}
    experts = [(nn.Linear(5120, 1536, **make), nn.Linear(1536, 5120, **make)) for _ in range(128)]
    subgraphs = [experts[i : i + 16] for i in range(0, 128, 16)] if mended else [experts]
    with torch.no_grad():
        for subgraph in subgraphs:
            hessians = {}
            for _ in range(2):
                hidden = torch.randn(16384, 5120, dtype=torch.bfloat16, device="cuda")
                for number, (up, down) in enumerate(subgraph):
                    of = hessians.get(number)
                    of = llmcompressor.make_empty_hessian(5120) if of is None else of
                    hessians[number] = llmcompressor.accumulate_hessian(hidden, of)
                    down(up(hidden))
            for hessian in hessians.values():
                hessian.diagonal().clone()
            del hessian
