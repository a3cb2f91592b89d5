# SPDX-License-Identifier: BSD-3-Clause
"""Solutions and misconceptions of kernels, products and designs, as in solutions.py."""

import hashlib
import random
import zlib

import torch


def combined(one, other):
    count = one[0] + other[0]
    step = other[1] - one[1]
    mean = one[1] + step * other[0] / count
    return count, mean, one[2] + other[2] + step**2 * one[0] * other[0] / count


def combined_but(mean=None, squares=None):
    """All is right but a mean or a sum of squares, given by a function of both parts."""

    def answer(one, other):
        right = combined(one, other)
        return (
            right[0],
            mean(one, other) if mean else right[1],
            squares(one, other) if squares else right[2],
        )

    return answer


def by_sums_of_squares(one, other):
    count, mean, _ = combined(one, other)
    total = sum(squares + n * middle**2 for n, middle, squares in (one, other))
    return count, mean, total - count * mean**2


def without_empty_parts(one, other):
    one[2] / one[0]
    return combined(one, other)


def input_gradient(
    terms=("mean", "deviation"),
    scale=True,
    late=False,
    inner=True,
    rows=True,
    variance=lambda x: x.var(1, unbiased=False, keepdim=True),
):
    def answer(x, w, g, eps):
        across = {"dim": 1, "keepdim": True} if rows else {}
        rstd = (variance(x) + (eps if inner else 0)).rsqrt()
        hat = (x - x.mean(1, keepdim=True)) * rstd
        d = g * w if scale and not late else g
        made = d
        if "mean" in terms:
            made = made - d.mean(**across)
        if "deviation" in terms:
            made = made - hat * (d * hat).mean(**across)
        return made * rstd * (w if late else 1)

    return answer


def normalised(x, eps):
    rstd = (x.var(1, unbiased=False, keepdim=True) + eps).rsqrt()
    return (x - x.mean(1, keepdim=True)) * rstd, rstd


def by_sums(x, w, g, eps):
    (hat, rstd), d = normalised(x, eps), g * w
    return (d - d.sum(1, keepdim=True) - hat * (d * hat).sum(1, keepdim=True)) * rstd


def along_columns(x, w, g, eps):
    (hat, rstd), d = normalised(x, eps), g * w
    return (d - d.mean(0, keepdim=True) - hat * (d * hat).mean(0, keepdim=True)) * rstd


def eps_outside(x, w, g, eps):
    rstd = 1 / (x.std(1, unbiased=False, keepdim=True) + eps)
    hat, d = (x - x.mean(1, keepdim=True)) * rstd, g * w
    return (d - d.mean(1, keepdim=True) - hat * (d * hat).mean(1, keepdim=True)) * rstd


def by_a_graph_of_its_own(x, w, g, eps):
    with torch.enable_grad():
        return by_autograd(x.detach().requires_grad_(), w, g, eps)


def by_autograd(x, w, g, eps):
    y = torch.nn.functional.layer_norm(x, w.shape, w, None, eps)
    return torch.autograd.grad(y, x, g)[0]


def additions(rows, columns, tile):
    return -(-rows // tile) * columns


def quantized(steps=127, largest=lambda x: x.abs().max(), cut=torch.round, zeros=True):
    def answer(x):
        scale = largest(x).item() / steps
        if zeros:
            scale = scale or 1.0
        return cut(x / scale).to(torch.int32).to(torch.int8), scale

    return answer


def row_of(offsets, sequence, token):
    row = offsets[sequence] + token
    return row if row < offsets[sequence + 1] else None


def row_or_none(row):
    """Another row, and None where the sequence is too short."""
    return lambda offsets, sequence, token: (
        row(offsets, sequence, token) if row_of(offsets, sequence, token) is not None else None
    )


def added(a, scale_a, b, scale_b):
    return quantized()(a.double() * scale_a + b.double() * scale_b)


def added_in(scale):
    def answer(a, scale_a, b, scale_b):
        common = scale(scale_a, scale_b)
        total = (a.double() * scale_a + b.double() * scale_b) / common
        return total.round().clamp(-127, 127).to(torch.int8), common

    return answer


def batches(most_counts=True, since="first", closes=lambda now, end: now > end):
    def answer(arrivals, most, wait):
        sizes, opened = [], None
        for now in arrivals:
            full = most_counts and sizes and sizes[-1] == most
            if opened is None or full or closes(now, opened + wait):
                sizes.append(0)
                opened = now // wait * wait if since == "tick" else now
            sizes[-1] += 1
            if since == "last":
                opened = now
        return sizes

    return answer


def place(text):
    return int(hashlib.sha256(text.encode()).hexdigest(), 16) / 2**256


def version(user, share):
    return "B" if place(user) < share else "A"


def by_checksum(user, share):
    return "B" if zlib.crc32(user.encode()) / 2**32 < share else "A"


REMEMBERED = {}


def remembered(user, share):
    return REMEMBERED.setdefault(user, "B" if random.random() < share else "A")


def looked_up(user, share):
    REMEMBERED.setdefault(user, random.random())
    return "B" if REMEMBERED[user] < share else "A"


def every_nth(user, share):
    users = round(1 / share) if share else 0
    return "B" if users and int(hashlib.sha256(user.encode()).hexdigest(), 16) % users == 0 else "A"


def moved_by_the_share(user, share):
    return "B" if place(f"{user} {share}") < share else "A"


PRODUCT = {
    "kernel-1": (
        combined,
        [
            (combined_but(mean=lambda one, other: (one[1] + other[1]) / 2), "counts more"),
            (combined_but(squares=lambda one, other: one[2] + other[2]), "farther from"),
            (
                combined_but(
                    squares=lambda one, other: (
                        one[2] + other[2] + (one[0] + other[0]) * (one[1] - other[1]) ** 2
                    )
                ),
                "n * m / (n + m)",
            ),
            (
                combined_but(
                    squares=lambda one, other: one[2] + other[2] + (one[1] - other[1]) ** 2
                ),
                "and not once",
            ),
            (by_sums_of_squares, "lose all digits"),
            (without_empty_parts, "may have no element"),
        ],
    ),
    "kernel-2": (
        input_gradient(),
        [
            (input_gradient(terms=()), "two more terms"),
            (input_gradient(terms=("mean",)), "deviation depends"),
            (input_gradient(terms=("deviation",)), "mean depends"),
            (input_gradient(late=True), "before its means"),
            (input_gradient(scale=False), "that comes in"),
            (input_gradient(inner=False), "part of the deviation"),
            (input_gradient(rows=False), "its own mean"),
            (by_autograd, "write the formula"),
            (by_a_graph_of_its_own, "write the formula"),
            (input_gradient(variance=lambda x: x.var(1, keepdim=True)), "not by n - 1"),
            (by_sums, "not sums"),
            (along_columns, "not dim=0"),
            (eps_outside, "within the root"),
        ],
    ),
    "kernel-3": (
        additions,
        [
            (lambda rows, columns, tile: rows * columns, "by the program itself"),
            (lambda rows, columns, tile: rows // tile * columns, "that are left"),
            (lambda rows, columns, tile: -(-rows // tile), "every column"),
            (
                lambda rows, columns, tile: rows * columns + additions(rows, columns, tile),
                "nobody else adds",
            ),
            (lambda rows, columns, tile: rows * columns / tile, "Half a program"),
            (lambda rows, columns, tile: (rows // tile + 1) * columns, "leave no program over"),
            (lambda rows, columns, tile: columns, "its own sums"),
        ],
    ),
    "nested-1": (
        quantized(),
        [
            (quantized(steps=128), "128 is -128"),
            (quantized(cut=torch.trunc), "cuts digits off"),
            (quantized(largest=torch.max), "of either sign"),
            (quantized(largest=lambda x: (x.max() - x.min()) / 2), "of either sign"),
            (quantized(steps=64), "larger than"),
            (lambda x: ((x * 127).round().to(torch.int8), 1 / 127), "of either sign"),
            (lambda x: (x.round().to(torch.int32), 1.0), "is not int8"),
            (quantized(zeros=False), "cannot be divided by"),
        ],
    ),
    "nested-2": (
        row_of,
        [
            (lambda offsets, sequence, token: sequence * 40 + token, "padded batch"),
            (lambda offsets, sequence, token: offsets[sequence] + token, "of the next sequence"),
            (
                row_or_none(lambda offsets, i, token: sum(offsets[: i + 1]) + token),
                "add up already",
            ),
            (row_or_none(lambda offsets, i, token: offsets[i + 1] + token), "where the sequence"),
            (
                lambda offsets, i, token: (
                    offsets[i] + token if offsets[i] + token + 1 < offsets[i + 1] else None
                ),
                "length - 1",
            ),
            (lambda *told: row_of(*told) or None, "in Python 0 is false"),
        ],
    ),
    "nested-3": (
        added,
        [
            (lambda a, scale_a, b, scale_b: (a + b, scale_a), "integers were added"),
            (added_in(lambda a, b: a + b), "sum of both bounds"),
            (added_in(max), "cuts the sum off"),
            (
                lambda a, scale_a, b, scale_b: quantized(zeros=False)(
                    a.double() * scale_a + b.double() * scale_b
                ),
                "cannot be divided by",
            ),
        ],
    ),
    "product-1": (
        batches(),
        [
            (batches(since="last"), "not from the latest"),
            (batches(since="tick"), "no clock ticks"),
            (batches(most_counts=False), "closes at once"),
            (batches(closes=lambda now, end: False), "the wait closes it"),
            (batches(closes=lambda now, end: now >= end), "the moment of closing"),
            (lambda arrivals, most, wait: [1] * len(arrivals), "waits for others"),
            (lambda arrivals, most, wait: batches()(arrivals, most + 1, wait), "not one more"),
            (lambda *told: batches()(*told)[:-1], "last batch counts"),
        ],
    ),
    "product-2": (
        version,
        [
            (lambda user, share: "B" if random.random() < share else "A", "meets both"),
            (lambda user, share: "B" if hash(user) % 100 < 100 * share else "A", "meets both"),
            (remembered, "meets both"),
            (lambda user, share: "B" if len(user) % 10 < 10 * share else "A", "spreads names"),
            (lambda user, share: "B" if sum(user.encode()) % 256 < 256 * share else "A", "spreads"),
            (by_checksum, "such as crc32()"),
            (moved_by_the_share, "lost it"),
            (every_nth, "lost it"),
            (looked_up, "that of one process"),
        ],
    ),
}
