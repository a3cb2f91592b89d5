# SPDX-License-Identifier: BSD-3-Clause
"""A chunk size for log-probabilities is ignored in the loss of a training step.

Report: https://github.com/NVIDIA-NeMo/RL/issues/2871
Resolution: logprob_chunk_size applies in training, too.
"""

import torch

from claims.reports.library import library

MEMORY = 200 << 20
CAUSE = "the peak of one step"
ADVICE = r"chunk"

model_utils = library(
    "nemo_rl/distributed/model_utils.py",
    """
def _compute_distributed_log_softmax(vocab_parallel_logits):
    shifted = vocab_parallel_logits - vocab_parallel_logits.max(-1, keepdim=True).values
    sum_exp_logits = shifted.exp().sum(-1, keepdim=True).float()
    return shifted - sum_exp_logits.log()
""",
)


def program(mended: bool) -> None:
    """Makes two steps."""
    chunk = 128 if mended else 1024
    head = torch.randn(16384, 64, device="cuda")
    for tokens in (128, 1024):
        hidden = torch.randn(tokens, 64, device="cuda")
        for part in hidden.split(chunk):
            model_utils._compute_distributed_log_softmax(part @ head.T)[:, :1].clone()
