# SPDX-License-Identifier: BSD-3-Clause
"""Bugs of chips, libraries, determinism and device asserts, each with its mended twin."""

import torch
from seeded_bugs import Bug, strictly, x
from torch.nn import functional as F

from torch_npusim.testing import allow_sync

FLOAT8 = torch.float8_e4m3fn


def waits(call):
    """Allows a wait that CUDA needs too, for the success of a decomposition or lengths."""
    with allow_sync():
        return call()


def alignments(targets):
    scores = x(5, 1, 4).requires_grad_().log_softmax(2)
    sizes = torch.tensor([5]), torch.tensor([3])
    waits(lambda: F.ctc_loss(scores, targets.cuda(), *sizes).backward())


def eight_bits(scaled):
    left, right = x(16, 16), x(16, 16)
    if not scaled:
        return left.bfloat16() @ right.bfloat16()
    one = x(1)[0]
    return torch._scaled_mm(left.to(FLOAT8), right.to(FLOAT8).t(), scale_a=one, scale_b=one)


def jitted(data):
    code = "template <typename T> T twice(T x) { return 2 * x; }"
    return torch.cuda.jiterator._create_jit_fn(code)(data)


ASSERT = r"AcceleratorError: CUDA error: device-side assert triggered[\s\S]*"
LIBRARIES = {
    # Chips and libraries
    "products_of_eight_bits": Bug(
        r"_scaled_mm is only supported on CUDA devices with compute capability >= 9\.0 or 8\.9",
        lambda data: eight_bits(True),
        lambda data: eight_bits(False),
    ),
    "driver_of_another_library": Bug(
        r"unknown svd driver gesdd",
        lambda data: torch.linalg.svd(data, driver="gesdd"),
        lambda data: waits(lambda: torch.linalg.svd(data, driver="gesvd")),
    ),
    "kernel_in_a_string": Bug(
        r"cannot run CUDA code", lambda data: jitted(data), lambda data: 2 * data
    ),
    "histogram_of_points": Bug(
        r"Could not run 'aten::_histogramdd_bin_edges' with arguments from the 'CUDA' backend",
        lambda data: torch.histogramdd(x(8, 2), bins=[2, 2]),
        lambda data: torch.histc(x(16), bins=4, min=0, max=2),
    ),
    # Determinism
    "sums_at_places": Bug(
        r"put_ does not have a deterministic implementation",
        strictly(lambda data: x(4).put_(x(4).long(), x(4), accumulate=True)),
        strictly(lambda data: x(4).index_put_((x(4).long(),), x(4), accumulate=True)),
    ),
    "gradient_of_alignments": Bug(
        r"ctc_loss_backward_gpu does not have a deterministic implementation",
        strictly(lambda data: alignments(torch.ones(1, 3, dtype=torch.long))),
        lambda data: alignments(torch.ones(1, 3, dtype=torch.long)),
    ),
    # Device asserts
    "no_probabilities": Bug(
        ASSERT + "probability tensor contains either `inf`, `nan`",
        lambda data: torch.multinomial(x(4) * float("nan"), 1),
        lambda data: torch.multinomial(x(4), 1),
    ),
    "chances_beyond_one": Bug(
        ASSERT + "expects all elements of p to be in",
        lambda data: torch.bernoulli(data * 3),
        lambda data: torch.bernoulli(data / 3),
    ),
    "too_few_values_for_a_mask": Bug(
        ASSERT + "Number of elements of source",
        lambda data: data.masked_scatter(data > 0, x(2)),
        lambda data: data.masked_scatter(data > 0, x(16)),
    ),
    "class_of_a_pixel": Bug(
        ASSERT + "Target 9 is out of bounds",
        lambda data: F.cross_entropy(x(1, 4, 2, 2), x(1, 2, 2).long() * 9),
        lambda data: F.cross_entropy(x(1, 4, 2, 2), x(1, 2, 2).long()),
    ),
}
