# SPDX-License-Identifier: BSD-3-Clause
"""Which kind of memory an allocation is, by the frames of its stack: a guess, and called one.

The distributions that name kinds have a link to this file, as to frames.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

UNKNOWN = "not recorded"
# The first whose pattern is found in "file function" of the innermost frame that has one.
_KINDS = (
    (
        "KV cache",
        r"kv_?(cache|pool|buffer)|past_key_value|cache_utils|mem_cache|block_manager|paged"
        r"| (_?(init|setup|alloc|create|make|build|reserve)\w*_)?caches?$|-packages/.*/cache\.py ",
    ),
    ("optimizer state", r"/optim(izer)?/|optimi[sz]er|(adam\w*|sgd|lion|muon)\.py"),
    ("gradients", r"AccumulateGrad|accumulate_grad"),
    (
        "logits",
        r" [^/]*(logits|log_?softmax|log_?prob|_logps|lm_head|cross_entropy|nll_loss)[^/]*$"
        r"|-packages/(vllm|sglang|tensorrt_llm|lmdeploy)/(.*/)?sampl\w*[/.]",
    ),
    ("backward pass", r"Backward\d*(::| |$)|autograd::Engine|/autograd/| [^/]*_backward\b"),
    (
        "parameters",
        r" (reset_parameters|_apply|load_state_dict|from_pretrained|_load\w*|init_weights"
        r"|load_(\w+_)?(weights?|model|checkpoint))$"
        r"|/nn/modules/\w+\.py __init__$|/nn/init\.py |/nn/parameter\.py ",
    ),
    ("activations", r" (forward|_call_impl|_wrapped_call_impl)$|/nn/functional\.py "),
    ("input data", r"/utils/data/|dataloader|pin_memory|collate"),
)
KINDS = tuple(name for name, _ in _KINDS)
_PATTERNS = tuple((name, re.compile(pattern, re.IGNORECASE)) for name, pattern in _KINDS)


def kind_of(stack: Iterable[tuple[str, int, str]]) -> str:
    """Return one of KINDS, "other", or UNKNOWN of an empty stack.

    Args:
        stack: file, line and function of each frame, innermost first.
    """
    kind = UNKNOWN
    for file, _, function in stack:  # an optimizer's step may call a model
        line = f"{file} {function}".replace("\\", "/")
        for name, pattern in _PATTERNS:
            if pattern.search(line):
                return name
        kind = "other"
    return kind
