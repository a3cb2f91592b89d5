# SPDX-License-Identifier: BSD-3-Clause
"""Operators without a deterministic implementation on CUDA."""

import functools

import torch
from torch.nn import functional as F

from claims.claim import Brief
from claims.lists.device_calls import waits, x


def strictly(function):
    @functools.wraps(function)
    def run(data):
        torch.use_deterministic_algorithms(True)
        try:
            function(data)
        finally:
            torch.use_deterministic_algorithms(False)

    return run


def alignments(targets):
    scores = x(5, 1, 4).requires_grad_().log_softmax(2)
    sizes = torch.tensor([5]), torch.tensor([3])
    waits(lambda: F.ctc_loss(scores, targets.cuda(), *sizes).backward())


CLAIMS = {
    "pooled_gradient": Brief(
        r"adaptive_avg_pool2d_backward_cuda does not have a deterministic implementation",
        strictly(
            lambda data: F.adaptive_avg_pool2d(x(1, 1, 4, 4).requires_grad_(), 2).sum().backward()
        ),
        strictly(lambda data: F.avg_pool2d(x(1, 1, 4, 4).requires_grad_(), 2).sum().backward()),
    ),
    "weighted_counts": Brief(
        r"_bincount_cuda does not have a deterministic implementation",
        strictly(lambda data: torch.bincount(x(4).long(), weights=x(4), minlength=3)),
        strictly(lambda data: torch.zeros(3, device="cuda").index_add_(0, x(4).long(), x(4))),
    ),
    "median_with_places": Brief(
        r"median CUDA with indices output does not have a deterministic implementation",
        strictly(lambda data: data.median(dim=0)),
        strictly(lambda data: data.quantile(0.5, dim=0)),
    ),
    "reflected_gradient": Brief(
        r"reflection_pad1d_backward_out_cuda does not have a deterministic implementation",
        strictly(
            lambda data: F.pad(x(1, 4).requires_grad_(), (1, 1), mode="reflect").sum().backward()
        ),
        strictly(lambda data: F.pad(x(1, 4).requires_grad_(), (1, 1)).sum().backward()),
    ),
    "sums_at_places": Brief(
        r"put_ does not have a deterministic implementation",
        strictly(lambda data: x(4).put_(x(4).long(), x(4), accumulate=True)),
        strictly(lambda data: x(4).index_put_((x(4).long(),), x(4), accumulate=True)),
    ),
    "gradient_of_alignments": Brief(
        r"ctc_loss_backward_gpu does not have a deterministic implementation",
        strictly(lambda data: alignments(torch.ones(1, 3, dtype=torch.long))),
        lambda data: alignments(torch.ones(1, 3, dtype=torch.long)),
    ),
    "loss_of_pixels": Brief(
        r"nll_loss2d_forward_out_cuda_template does not have a deterministic implementation",
        strictly(lambda data: F.cross_entropy(x(1, 4, 4, 4), x(1, 4, 4).long())),
        strictly(lambda data: F.cross_entropy(x(16, 4), x(16).long())),
    ),
}
