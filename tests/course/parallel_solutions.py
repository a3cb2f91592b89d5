# SPDX-License-Identifier: BSD-3-Clause
"""Solutions and misconceptions of the lessons on parallel training, as in solutions.py."""

import torch


def sent_in_a_ring(rank, step, ranks):
    return (rank - step) % ranks


def ring_time(ranks, size, latency, bandwidth):
    return 2 * (ranks - 1) * (latency + size / ranks / bandwidth)


def ring_sum(split=torch.Tensor.tensor_split, half=False, adds=False):
    def answer(x, rank, ranks, exchange):
        chunks = split(x, ranks)
        for step in range((ranks - 1) * (1 if half else 2)):
            come = exchange(chunks[(rank - step) % ranks])
            mine = chunks[(rank - step - 1) % ranks]
            if step < ranks - 1 or adds:
                mine += come
            else:
                mine.copy_(come)
        return x

    return answer


def whole_vectors(x, rank, ranks, exchange):
    total = x.clone()
    for _ in range(ranks - 1):
        x = exchange(x)
        total += x
    return total


def first_rank_collects(x, rank, ranks, exchange):
    return x if rank else exchange(x)


def journeys(devices, parameters, inputs, outputs):
    others = devices - 1
    return 2 * others * parameters + others / devices * (inputs + 2 * outputs)


PARALLEL = {
    "parallel-1": (
        ring_sum(),
        [
            (whole_vectors, "not the whole vector"),
            (ring_sum(half=True), "then they go round"),
            (ring_sum(adds=True), "takes the place of a part"),
            (ring_sum(torch.Tensor.chunk), "tensor_split() makes as many"),
            (first_rank_collects, "wait for ever"),
        ],
    ),
    "parallel-2": (
        journeys,
        [
            (
                lambda devices, parameters, inputs, outputs: (
                    2 * devices * parameters + inputs + 2 * outputs
                ),
                "one fewer",
            ),
            (
                lambda devices, parameters, inputs, outputs: journeys(
                    devices, parameters / 2, inputs, outputs / 2
                ),
                "Gradients come back",
            ),
            (
                lambda devices, parameters, inputs, outputs: (
                    (devices - 1) * (2 * parameters + inputs + 2 * outputs)
                ),
                "are divided among devices",
            ),
            (
                lambda devices, parameters, inputs, outputs: (
                    (devices - 1) / devices * (2 * parameters + inputs + 2 * outputs)
                ),
                "needs all of them",
            ),
        ],
    ),
    "parallel-3": (
        lambda samples, rank: samples[rank] * len(samples) / sum(samples),
        [
            (lambda samples, rank: 1, "mean of means"),
            (lambda samples, rank: samples[rank] / sum(samples), "divides by the number of ranks"),
            (
                lambda samples, rank: sum(samples) / (samples[rank] * len(samples)),
                "counts more, not less",
            ),
            (lambda samples, rank: samples[rank], "is a mean already"),
        ],
    ),
    "cluster-1": (
        sent_in_a_ring,
        [
            (lambda rank, step, ranks: (rank + step) % ranks, "came from the rank before"),
            (lambda rank, step, ranks: rank - step, "before it the last"),
            (lambda rank, step, ranks: step % ranks, "sends another one"),
            (
                lambda rank, step, ranks: (rank - step % (ranks - 1)) % ranks,
                "came to it last",
            ),
        ],
    ),
    "cluster-2": (
        ring_time,
        [
            (
                lambda ranks, size, latency, bandwidth: (
                    latency + 2 * (ranks - 1) / ranks * size / bandwidth
                ),
                "Each step has its latency",
            ),
            (
                lambda ranks, size, latency, bandwidth: (
                    2 * (ranks - 1) * (latency + size / bandwidth)
                ),
                "sends one chunk",
            ),
            (lambda *of: ring_time(*of) / 2, "half of the way"),
            (
                lambda ranks, size, latency, bandwidth: (
                    2 * ranks * (latency + size / ranks / bandwidth)
                ),
                "n - 1 steps",
            ),
        ],
    ),
    "cluster-3": (
        lambda durations: sum(map(max, zip(*durations, strict=True))),
        [
            (lambda durations: max(map(sum, durations)), "another rank may be the slowest"),
            (lambda durations: sum(map(sum, durations)) / len(durations), "a mean is for"),
            (lambda durations: max(map(max, durations)), "do not overlap"),
        ],
    ),
}
