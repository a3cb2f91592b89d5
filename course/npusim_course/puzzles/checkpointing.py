# SPDX-License-Identifier: BSD-3-Clause
"""Puzzles of the lesson on checkpointing."""

from collections.abc import Callable

import torch
from torch.utils.checkpoint import checkpoint_sequential

from npusim_course.judge import Puzzle, Wrong, expect
from torch_npusim import npusim

_FLOATS = 1000
_BLOCK = 4000


def _kept(answer: Callable[[int, int], int]) -> None:
    for layers, segments in ((8, 1), (8, 2), (8, 4), (12, 3), (10, 4)):
        x = torch.ones(_FLOATS, device="npusim", requires_grad=True)
        base = npusim.memory_allocated()
        made = checkpoint_sequential(  # type: ignore[no-untyped-call]
            [torch.sin] * layers, segments, x, use_reentrant=False
        )
        right = (npusim.memory_allocated() - base) // _BLOCK
        del made
        expect(
            answer(layers, segments),
            right,
            f"{layers} layers in {segments} segments",
            {
                "Within a checkpointed segment nothing is kept but its input.": layers,
                "The last segment is not checkpointed: its backward pass comes at once.": segments,
                "The other segments keep their inputs.": layers // segments,
            },
        )


def _checkpoint(
    answer: Callable[[Callable[[torch.Tensor], torch.Tensor], torch.Tensor], torch.Tensor],
) -> None:
    for device in ("cpu", "npusim"):
        x = torch.ones(_FLOATS, device=device, requires_grad=True)

        def function(x: torch.Tensor) -> torch.Tensor:
            y = torch.nn.functional.dropout(x, 0.5)
            for _ in range(4):
                y = y.sin()
            return y

        torch.manual_seed(0)
        base = npusim.memory_allocated()
        made = answer(function, x)
        kept = npusim.memory_allocated() - base
        if kept > 2 * _BLOCK:  # nothing, of the CPU
            raise Wrong(
                f"{kept} bytes are kept: the activations are still there. The function has to run "
                "without a graph first."
            )
        after = torch.rand(4, device=device)
        made.sum().backward()  # type: ignore[no-untyped-call]
        following = torch.rand(4, device=device)
        assert x.grad is not None
        if not torch.equal(made.detach() != 0, x.grad != 0):
            raise Wrong(
                f"on {device} the second run has drawn another mask: gradients reach elements that "
                "dropout had taken away. The state of the generator must be put back."
            )
        torch.manual_seed(0)
        function(x)
        if not torch.equal(torch.rand(4, device=device), after):
            raise Wrong(f"on {device} the forward pass has drawn other numbers than the function.")
        if not torch.equal(torch.rand(4, device=device), following):
            raise Wrong(
                f"on {device} backward() has moved the generator: the numbers that the program "
                "draws next are not those of a run without checkpoints."
            )


PUZZLES = [
    Puzzle(
        "checkpoint_sequential() runs that many sines in that many segments. How many tensors of "
        "the size of x live after the forward pass, besides x?",
        "def answer(layers, segments):\n    return 0\n",
        "The result is one of them. Each segment but the last is checkpointed, and has "
        "layers // segments layers.",
        _kept,
    ),
    Puzzle(
        "Run function(x) without keeping its activations. Gradients and all random numbers are "
        "those of a run without checkpoints.",
        "def answer(function, x):\n    return function(x)\n",
        "torch.utils.checkpoint does it; of your own: an autograd.Function and fork_rng().",
        _checkpoint,
    ),
]
