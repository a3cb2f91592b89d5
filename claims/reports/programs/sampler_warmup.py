# SPDX-License-Identifier: BSD-3-Clause
"""The warm-up of a sampler asks for logits of more sequences than memory is left for.

Report: https://github.com/vllm-project/vllm/issues/14452
Resolution: lower max_num_seqs or gpu_memory_utilization.
"""

import torch

from claims.reports.library import library

MEMORY = 256 << 20
CAUSE = "the peak of one step"
ADVICE = r"gpu_memory_utilization|max_num_seqs"

runner = library(
    "vllm/v1/worker/gpu_model_runner.py",
    """
import torch

def _allocate_kv_cache_tensors(count, bytes):
    return [torch.zeros(bytes, dtype=torch.int8, device="cuda") for _ in range(count)]

def _dummy_sampler_run(head, num_reqs):
    logits = torch.randn(num_reqs, head.shape[1], device="cuda") @ head.T
    return logits.softmax(-1).sort(-1)
""",
)


def program(mended: bool) -> None:
    """Starts as a server does."""
    max_num_seqs = 64 if mended else 512
    head = torch.zeros(16384, 64, device="cuda")
    runner._dummy_sampler_run(head, 16)
    caches = runner._allocate_kv_cache_tensors(16, 10 << 20)
    runner._dummy_sampler_run(head, max_num_seqs)
    del caches
