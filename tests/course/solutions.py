# SPDX-License-Identifier: BSD-3-Clause
"""Solutions of the puzzles, and for each puzzle misconceptions with a part of their failure's text.

Readers of the course: try first; inside.hint("views-1") helps.
"""

import torch

MIB = 1 << 20


def contiguous_strides(shape):
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def column_major(shape):
    strides, step = [], 1
    for size in shape:
        strides.append(step)
        step *= size
    return tuple(strides)


def sectors_of_a_column(rows, columns, item):
    return len({row * columns * item // 32 for row in range(rows)})


def first_key(x, inference):
    device = "CPU" if x.device.type == "cpu" else "PrivateUse1"
    return device if inference else f"Autograd{device}"


def key_by_requires_grad(x, inference):
    device = "CPU" if x.device.type == "cpu" else "PrivateUse1"
    return f"Autograd{device}" if x.requires_grad else device


def key_by_grad_mode(x, inference):
    device = "CPU" if x.device.type == "cpu" else "PrivateUse1"
    return f"Autograd{device}" if torch.is_grad_enabled() else device


def key_without_inference_mode(x, inference):
    return first_key(x, False)


def registered(key):
    return lambda library: library.impl("scale", lambda x, by: x * by, key)


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.round()

    @staticmethod
    def backward(context, gradient):
        return gradient


class Ones(Straight):
    @staticmethod
    def backward(context, gradient):
        return torch.ones_like(gradient)


def mended(x):
    return ((x.exp() + 1) ** 2).sum()


def under_no_grad(x):
    y = x.exp()
    with torch.no_grad():
        y.add_(1)
    return (y**2).sum()


def by_data(x):
    y = x.exp()
    y.data.add_(1)
    return (y**2).sum()


def detached(x):
    y = x.exp().detach()
    y.add_(1)
    return (y**2).sum()


def rounded(quantum):
    return lambda requests: sum(-(-size // quantum) * quantum for size in requests)


def best_fit(blocks, size):
    fitting = [(length, place) for place, length in enumerate(blocks) if length >= size]
    return min(fitting)[1] if fitting else None


def first_fit(blocks, size):
    return next((place for place, length in enumerate(blocks) if length >= size), None)


def smallest(blocks, size):
    return blocks.index(min(blocks))


def exact(blocks, size):
    return blocks.index(size) if size in blocks else None


def segment(size):
    if size <= MIB:
        return 2 * MIB
    return 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB


def windows(x):
    return x.as_strided((len(x) - 2, 3), (1, 1), x.storage_offset())


# name: (solution, [(misconception, part of the text of its failure)])
SOLUTIONS = {
    "views-1": (
        contiguous_strides,
        [
            (column_major, "column-major"),
            (lambda shape: tuple(4 * s for s in contiguous_strides(shape)), "not bytes"),
            (lambda shape: (*shape[1:], 1), "product of all sizes"),
        ],
    ),
    "views-2": (
        windows,
        [
            (lambda x: torch.stack([x[i : i + 3] for i in range(len(x) - 2)]), "a copy"),
            (lambda x: x[:6].reshape(2, 3), "windows overlap"),
            (lambda x: x.as_strided((len(x) - 2, 3), (1, 1), 0), "takes an offset"),
        ],
    ),
    "views-3": (
        sectors_of_a_column,
        [
            (lambda rows, columns, item: rows, "share sectors"),
            (lambda rows, columns, item: -(-rows * item // 32), "not neighbours"),
            (lambda rows, columns, item: -(-rows * columns * item // 32), "other columns"),
        ],
    ),
    "dispatcher-1": (
        first_key,
        [
            (key_by_requires_grad, "in every tensor's set"),
            (key_by_grad_mode, "no_grad() takes no key away"),
            (key_without_inference_mode, "inference_mode() takes autograd's keys away"),
        ],
    ),
    "dispatcher-2": (
        registered("CompositeImplicitAutograd"),
        [
            (registered("CompositeExplicitAutograd"), "stands below autograd"),
            (registered("CPU"), "stands below autograd"),
            (registered("PrivateUse1"), "serves that device alone"),
        ],
    ),
    "autograd-1": (
        Straight.apply,
        [
            (lambda x: x.round(), "which is flat"),
            (lambda x: x.detach().round(), "detach() has cut it"),
            (Ones.apply, "not ones"),
        ],
    ),
    "autograd-2": (
        lambda elements: 4 * elements,
        [
            (lambda elements: 8 * elements, "x is a leaf"),
            (lambda elements: 12 * elements, "one storage of a leaf"),
            (lambda elements: 0, "exp saves its result"),
        ],
    ),
    "autograd-3": (
        mended,
        [
            (under_no_grad, "does not hide that"),
            (by_data, "no version counter sees"),
            (detached, "has no graph"),
        ],
    ),
    "allocator-1": (
        rounded(32),
        [
            (sum, "requests alone are too few"),
            (rounded(512), "CUDA rounds to 512"),
            (lambda requests: -(-sum(requests) // 32) * 32, "not their sum"),
        ],
    ),
    "allocator-2": (
        best_fit,
        [
            (first_fit, "first block that fits"),
            (smallest, "too small"),
            (exact, "can be split"),
        ],
    ),
    "allocator-3": (
        segment,
        [
            (lambda size: size, "more than one request"),
            (lambda size: 2 * MIB, "a pool of their own"),
            (lambda size: -(-size // (2 * MIB)) * 2 * MIB, "share segments of 20 MiB"),
        ],
    ),
}
