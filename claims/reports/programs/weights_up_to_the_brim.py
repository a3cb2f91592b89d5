# SPDX-License-Identifier: BSD-3-Clause
"""A device map counts weights, and not the ends of the segments that they lie in.

Report: https://github.com/vllm-project/compressed-tensors/pull/587
Resolution: reserve 5 % for fragmentation, with fewer weights on the device; torch's own message
names expandable segments.
"""

import torch

from claims.reports.library import library

MEMORY = 241 << 20
CAUSE = "fragmentation"
ADVICE = r"expandable_segments"

compressed = library(
    "compressed_tensors/offload/dispatch.py",
    """
import torch

def dispatch_model(bytes, count):
    return [torch.empty(bytes, dtype=torch.int8, device="cuda") for _ in range(count)]
""",
)


def program(mended: bool) -> None:
    """Dispatches weights of 6.3 MiB, and makes one pass beside them."""
    on_device = 30 if mended else 33
    weights = compressed.dispatch_model(int(6.3 * (1 << 20)), on_device)
    hidden = torch.empty(22 << 20, dtype=torch.int8, device="cuda")
    del weights, hidden
