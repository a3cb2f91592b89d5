# SPDX-License-Identifier: BSD-3-Clause
"""Weights that were shuffled lie in the memory of raw ones, and no KV cache fits beside them.

Report: https://github.com/vllm-project/vllm/pull/41158
Resolution: PYTORCH_ALLOC_CONF=expandable_segments:True by default.
"""

import torch

from claims.reports.library import library

MEMORY = 80 << 30
CAUSE = "fragmentation"
ADVICE = r"expandable_segments:True"
SETTING = "expandable_segments:True"
DRY = True

vllm = library(
    "vllm/model_executor/layers/quantization/mxfp4.py",
    """
import torch

def empty(mebibytes):
    return torch.empty(int(mebibytes * 2**20), dtype=torch.uint8, device="cuda")

def create_weights():
    return {"w13": empty(540), "w2": empty(270), "w13_scale": empty(34), "w2_scale": empty(17)}

def process_weights_after_loading(layer):
    layer["w13"], layer["w2"] = empty(556), empty(278)
    layer["w13_scale"] = layer["w13_scale"].clone()
""",
)


def program(mended: bool) -> None:
    """Loads 36 layers, runs once, and makes the KV cache of what is not in use."""
    layers = [vllm.create_weights() for _ in range(36)]
    for layer in layers:
        vllm.process_weights_after_loading(layer)
    peak = torch.empty(5 << 30, dtype=torch.uint8, device="cuda")
    del peak
    room = int(MEMORY * 0.97) - torch.cuda.max_memory_allocated()
    block = torch.Size([room // 36 // 4096, 4096])
    kv_cache = [torch.zeros(block, dtype=torch.uint8, device="cuda") for _ in range(36)]
    del kv_cache, layers
