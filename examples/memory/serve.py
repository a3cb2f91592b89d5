# SPDX-License-Identifier: BSD-3-Clause
"""A server that keeps a cache per request, and copies it to a larger one as it grows."""

import random

import torch


def cache(tokens: int) -> torch.Tensor:
    """A cache of so many tokens."""
    return torch.empty(tokens, 32768, dtype=torch.uint8, device="cuda")


def serve(requests: list[torch.Tensor]) -> None:
    """Each step, every request has 64 tokens more, or is a new one."""
    for _ in range(200):
        for i in range(len(requests)):
            tokens = len(requests[i]) + 64
            if tokens > 2500:
                tokens = random.randint(16, 1500)
            requests[i] = cache(tokens)


random.seed(0)
torch.cuda.memory._record_memory_history()
try:
    serve([cache(random.randint(16, 1500)) for _ in range(12)])
finally:
    torch.cuda.memory._dump_snapshot("serve.pickle")
