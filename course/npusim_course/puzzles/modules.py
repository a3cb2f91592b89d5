# SPDX-License-Identifier: BSD-3-Clause
"""Puzzles of the lesson on modules and optimizers."""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from npusim_course.judge import Puzzle, Wrong


def _registered(answer: Callable[[tuple[int, ...]], nn.Module]) -> None:
    for widths in ((4, 3), (2, 5, 3)):
        case = f"widths {widths}"
        net = answer(widths).to("npusim")
        trained = {name: one for name, one in net.named_parameters() if "calls" not in name}
        elements = sum(one.numel() for one in trained.values())
        right = sum(out * (into + 1) for into, out in itertools.pairwise(widths))
        if elements != right:
            raise Wrong(
                f"{case}: parameters() has {elements} elements, and {right} are right: a module "
                "finds layers that are attributes or lie in a ModuleList, and none in a list."
            )
        if "calls" in dict(net.named_parameters()):
            raise Wrong(f"{case}: a Parameter is trained, and calls must not be.")
        if "calls" not in net.state_dict():
            raise Wrong(
                f"{case}: calls is not in state_dict(): a plain tensor is in no table of the "
                "module; a buffer is, unless it is not persistent."
            )
        if net.get_buffer("calls").device.type != "npusim":
            raise Wrong(f"{case}: calls has not moved with the module.")
        x = torch.ones(2, widths[0], device="npusim")
        for _ in range(3):
            made = net(x)
        if tuple(made.shape) != (2, widths[-1]):
            raise Wrong(f"{case}: the result has shape {tuple(made.shape)}.")
        if "calls" not in net.state_dict():
            raise Wrong(f"{case}: after a call, calls is no buffer any more.")
        if net.get_buffer("calls").device.type != "npusim":
            raise Wrong(
                f"{case}: after a call, calls is on the CPU: another tensor has its name; add to "
                "it in place."
            )
        if (counted := net.state_dict()["calls"].item()) != 3:
            raise Wrong(f"{case}: after three calls, calls in state_dict() is {counted}.")


class _Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.norm(self.layer(x))
        return made


def _kept(answer: Callable[[nn.Module], Mapping[str, Any]]) -> None:
    for device in ("npusim", "cpu"):
        net = _Normed().to(device)
        right = {name: one.detach().clone() for name, one in net.state_dict().items()}
        kept = answer(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
        for _ in range(2):
            net(torch.arange(12.0, device=device).reshape(3, 4)).pow(2).sum().backward()
            optimizer.step()
        missing = sorted(set(right) - set(kept))
        if missing:
            raise Wrong(
                f"{missing[0]} is missing: a state has the buffers too, here those of BatchNorm1d."
            )
        changed = [name for name, one in right.items() if not torch.equal(kept[name].to(one), one)]
        if changed:
            raise Wrong(
                f"on {device} {changed[0]} has changed with the training: state_dict() and a "
                "copy of the dict share the module's storages, and so does .cpu() of a tensor "
                "that is there."
            )
        net.load_state_dict(kept)
        if any(not torch.equal(one, right[name]) for name, one in net.state_dict().items()):
            raise Wrong("load_state_dict() did not bring the state back.")


def _decayed(answer: Callable[[nn.Module], torch.optim.Optimizer]) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2)).to("npusim")
    try:
        optimizer = answer(net)
    except ValueError as problem:
        if "more than one parameter group" not in str(problem):
            raise
        raise Wrong(
            "torch refuses: a parameter is in two groups; a group does not take it from another."
        ) from None
    if not isinstance(optimizer, torch.optim.AdamW):
        raise Wrong(
            f"{type(optimizer).__name__} is not AdamW, whose decay is apart from gradients."
        )
    decay = {
        one: group["weight_decay"] for group in optimizer.param_groups for one in group["params"]
    }
    for name, one in net.named_parameters():
        if one not in decay:
            raise Wrong(f"{name} is in no group: it is not trained, and nothing warns.")
        right = 0.1 if one.ndim == 2 else 0.0
        if decay[one] == right:
            continue
        if right:
            raise Wrong(f"{name} is a matrix, and its decay is {decay[one]}.")
        if name.endswith("weight"):
            raise Wrong(
                f"{name} decays by {decay[one]}: a norm's weight has one dimension and is no "
                "matrix, though its name is weight."
            )
        raise Wrong(
            f"{name} decays by {decay[one]}: options of the optimizer are those of each group that "
            "has none of its own."
        )


PUZZLES = [
    Puzzle(
        "Return a module of linear layers from each width to the next. It counts its calls in a "
        "tensor `calls`, which is saved, moves with the module, and is not trained.",
        "class Chain(torch.nn.Module):\n    pass\n\n\ndef answer(widths):\n    return Chain()\n",
        "nn.ModuleList or nn.Sequential for the layers, register_buffer() for the counter; count "
        "in place.",
        _registered,
    ),
    Puzzle(
        "Keep the state of a net, to be loaded with load_state_dict() later. Training goes on.",
        "def answer(net):\n    return net.state_dict()\n",
        "Compare data_ptr() of a weight with that of the tensor in state_dict().",
        _kept,
    ),
    Puzzle(
        "Return an AdamW whose decay of 0.1 is for matrices alone: not for biases, not for norms. "
        "Every parameter is trained.",
        "def answer(net):\n    return torch.optim.AdamW(net.parameters(), weight_decay=0.1)\n",
        "Two groups. The number of dimensions tells more than the name.",
        _decayed,
    ),
]
