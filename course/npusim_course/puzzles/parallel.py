# SPDX-License-Identifier: BSD-3-Clause
"""Puzzles of the lesson on training on several devices."""

import threading
from collections.abc import Callable, Sequence
from queue import Queue
from typing import Any

import torch

from npusim_course.judge import Puzzle, Wrong, expect


class _Stranded(Exception):
    """A rank exchanges, and another one has ended."""


def _run(answer: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> tuple[list[Any], list[int]]:
    """Runs an answer as ranks in threads; returns what each has made, and what it has sent."""
    ranks = len(inputs)
    sent = [0] * ranks
    told: list[Queue[tuple[str, Any]]] = [Queue() for _ in range(ranks)]  # by each rank
    come: list[Queue[torch.Tensor | None]] = [Queue() for _ in range(ranks)]  # to each rank

    def work(rank: int) -> None:
        def exchange(part: torch.Tensor) -> torch.Tensor:
            sent[rank] += part.numel()
            told[rank].put(("sent", part.clone()))
            if (received := come[rank].get()) is None:
                raise _Stranded
            return received

        try:
            told[rank].put(("made", answer(inputs[rank].clone(), rank, ranks, exchange)))
        except BaseException as problem:
            told[rank].put(("raised", problem))

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    while True:
        news = [queue.get() for queue in told]
        if any(kind != "sent" for kind, _ in news):
            break
        for rank, (_, part) in enumerate(news):
            come[(rank + 1) % ranks].put(part)
    for rank, (kind, _) in enumerate(news):
        if kind == "sent":
            come[rank].put(None)
    for thread in threads:
        thread.join()
    for kind, problem in news:
        if kind == "raised":
            raise problem
    if any(kind == "sent" for kind, _ in news):
        raise Wrong("Some ranks exchange more often than others, and wait for ever.")
    return [value for _, value in news], sent


def _summed(answer: Callable[..., Any]) -> None:
    for ranks, length in ((4, 8), (4, 9), (3, 7)):
        case = f"{ranks} ranks, {length} numbers each"
        # Rank 2 has hundreds: the digits of a sum tell who is in it, and how often.
        inputs = [torch.full((length,), 10.0**rank, dtype=torch.float64) for rank in range(ranks)]
        try:
            made, sent = _run(answer, inputs)
        except IndexError:
            raise Wrong(
                f"{case}: a chunk is missing: chunk() may make fewer than it is asked for, and "
                "tensor_split() makes as many."
            ) from None
        for rank, given in enumerate(made):
            if not isinstance(given, torch.Tensor) or given.shape != (length,):
                raise Wrong(f"{case}: rank {rank} returns no vector of {length} numbers.")
            digits = "".join(f"{int(value):0{ranks}d}" for value in given.tolist())
            if set(digits) - {"0", "1"}:
                raise Wrong(
                    f"{case}: rank {rank} has {given.tolist()}, and some numbers are in it twice: "
                    "a sum that is whole takes the place of a part, and is not added to it."
                )
            if "0" in digits:
                raise Wrong(
                    f"{case}: rank {rank} has {given.tolist()}, and some ranks are missing: after "
                    f"{ranks - 1} steps a rank has one chunk whole, and then they go round."
                )
        most = 2 * (ranks - 1) * -(-length // ranks)
        if max(sent) > most:
            raise Wrong(
                f"{case}: the sums are right, and a rank has sent {max(sent)} numbers. "
                f"{most} are enough: one chunk in each step, not the whole vector."
            )


def _travelled(answer: Callable[[int, int, int, int], float]) -> None:
    for devices, parameters, inputs, outputs in ((4, 1000, 400, 80), (2, 64, 32, 1000)):
        others = devices - 1
        share = others / devices
        right = 2 * others * parameters + share * (inputs + 2 * outputs)
        expect(
            float(answer(devices, parameters, inputs, outputs)),
            right,
            f"{devices} devices, {parameters} bytes of parameters, {inputs} of inputs, "
            f"{outputs} of outputs",
            {
                "Device 0 has its own part already: the others are one fewer.": 2
                * devices
                * parameters
                + inputs
                + 2 * outputs,
                "Gradients come back, those of outputs and those of parameters.": others
                * parameters
                + share * (inputs + outputs),
                "Inputs and outputs are divided among devices; parameters are copied to each.": (
                    others * (2 * parameters + inputs + 2 * outputs)
                ),
                "Parameters are not divided: each device needs all of them.": share
                * (2 * parameters + inputs + 2 * outputs),
            },
        )


def _weighed(answer: Callable[[list[int], int], float]) -> None:
    for samples in ([3, 1], [8, 8, 2, 6]):
        total, ranks = sum(samples), len(samples)
        for rank, own in enumerate(samples):
            expect(
                round(float(answer(list(samples), rank)), 6),
                round(own * ranks / total, 6),
                f"samples {samples}, rank {rank}",
                {
                    "A mean of means counts the samples of a small rank more.": 1.0,
                    "DDP divides by the number of ranks: its share alone is too little.": round(
                        own / total, 6
                    ),
                    "A rank with many samples counts more, not less.": round(
                        total / (own * ranks), 6
                    ),
                    "The loss of a rank is a mean already, and has its samples once.": float(own),
                },
            )


PUZZLES = [
    Puzzle(
        "Return the sum of all ranks' vectors. exchange(part) sends a tensor to the next rank and "
        "returns the one that the rank before has sent. Send no more than a ring needs.",
        "def answer(x, rank, ranks, exchange):\n    return x\n",
        "Cut x by tensor_split(). In each step send the chunk that came in the step before.",
        _summed,
    ),
    Puzzle(
        "How many bytes travel between device 0 and the others in a step of DataParallel? The "
        "arguments are bytes of the whole batch, and inputs need no gradient.",
        "def answer(devices, parameters, inputs, outputs):\n    return 0\n",
        "Five journeys: inputs and parameters out, outputs in, and two kinds of gradients.",
        _travelled,
    ),
    Puzzle(
        "Each rank computes the mean loss of its own samples, and DDP averages gradients over "
        "ranks. By which factor must a rank multiply its loss, so that the result is the gradient "
        "of the mean over all samples?",
        "def answer(samples, rank):\n    return 0\n",
        "Write the mean over all samples as a sum over ranks, and then as a mean over ranks.",
        _weighed,
    ),
]
