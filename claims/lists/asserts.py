# SPDX-License-Identifier: BSD-3-Clause
"""Values that a kernel of CUDA asserts, or computes differently."""

import torch
from torch.nn import functional as F

from claims.claim import Brief
from claims.lists.device_calls import x


def caught(error, call):
    try:
        call()
    except error:
        pass


ASSERT = r"AcceleratorError: CUDA error: device-side assert triggered[\s\S]*"


def goes_on(size):
    index = torch.arange(size, device="cuda")
    caught(torch.AcceleratorError, lambda: x()[index])
    return x() + 1


CLAIMS = {
    "token_beyond_the_table": Brief(
        r"AcceleratorError: CUDA error: device-side assert[\s\S]*index out of range in self",
        lambda data: F.embedding(torch.arange(5, device="cuda"), data),
        lambda data: F.embedding(torch.arange(4, device="cuda"), data),
    ),
    "loss_of_logits": Brief(
        r"device-side assert triggered[\s\S]*all elements of input should be between 0 and 1",
        lambda data: F.binary_cross_entropy(data * 3, data),
        lambda data: F.binary_cross_entropy_with_logits(data * 3, data),
    ),
    "error_that_is_no_index_error": Brief(
        r"AcceleratorError",
        lambda data: caught(IndexError, lambda: data[torch.arange(5, device="cuda")]),
        lambda data: caught(IndexError, lambda: data[9]),
    ),
    "no_probabilities": Brief(
        ASSERT + "probability tensor contains either `inf`, `nan`",
        lambda data: torch.multinomial(x(4) * float("nan"), 1),
        lambda data: torch.multinomial(x(4), 1),
    ),
    "chances_beyond_one": Brief(
        ASSERT + "expects all elements of p to be in",
        lambda data: torch.bernoulli(data * 3),
        lambda data: torch.bernoulli(data / 3),
    ),
    "too_few_values_for_a_mask": Brief(
        ASSERT + "Number of elements of source",
        lambda data: data.masked_scatter(data > 0, x(2)),
        lambda data: data.masked_scatter(data > 0, x(16)),
    ),
    "class_of_a_pixel": Brief(
        ASSERT + "Target 9 is out of bounds",
        lambda data: F.cross_entropy(x(1, 4, 2, 2), x(1, 2, 2).long() * 9),
        lambda data: F.cross_entropy(x(1, 4, 2, 2), x(1, 2, 2).long()),
    ),
    "goes_on_after_an_assert": Brief(
        r"AcceleratorError", lambda data: goes_on(5), lambda data: goes_on(4)
    ),
}
