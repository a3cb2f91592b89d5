# SPDX-License-Identifier: BSD-3-Clause
"""Jagged nested tensors: core's own samples of every operator, bit for bit as on the CPU."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from ops.swept import samples_of
from oracle import DEVICE, bits, reseed
from torch.nested._internal.nested_tensor import NestedTensor
from torch.testing._internal.opinfo.definitions.nested import njt_op_db
from torch.utils import _pytree as pytree

# Of the samples of an operator, which come layout by layout.
EVERY = 5
# The CPU's own gradient ends the process: an empty part of a split.
NO_GRADIENT = {"split_with_sizes"}
OPERATORS = {op.full_name: op for op in njt_op_db if op.supports_njt}


@dataclass
class Mover:
    """Moves tensors to the device; jagged tensors of the same offsets have the same there too."""

    moved: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)

    def __call__(self, tree: Any) -> Any:
        return pytree.tree_map(self._move, tree)

    def _once(self, tensor: torch.Tensor | None) -> torch.Tensor | None:
        if tensor is None:
            return None
        if id(tensor) not in self.moved:  # the tensor is kept, so its number stays its own
            self.moved[id(tensor)] = (tensor, tensor.detach().to(DEVICE))
        return self.moved[id(tensor)][1]

    def _move(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.device):
            return torch.device(DEVICE, 0)
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if isinstance(leaf, NestedTensor):
            made = NestedTensor(
                leaf._values.detach().to(DEVICE),  # keeps the strides
                offsets=self._once(leaf._offsets),
                lengths=self._once(leaf._lengths),
                _ragged_idx=leaf._ragged_idx,
                _metadata_cache=dict(leaf._metadata_cache),
            )
        else:
            made = leaf.detach().to(DEVICE)
        return made.requires_grad_(leaf.requires_grad)


def tensors_of(tree):
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def outcome(operator: Callable[..., Any], sample: Any):
    """Every result and gradient, or the type of the error and its text without symbols."""
    reseed(0)
    try:
        results = tensors_of(operator(sample.input, *sample.args, **sample.kwargs))
        ends = [result for result in results if result.requires_grad]
        leaves = [
            leaf
            for leaf in tensors_of((sample.input, sample.args, sample.kwargs))
            if leaf.requires_grad
        ]
        if ends and leaves:
            ones = [torch.ones_like(end) for end in ends]
            results += torch.autograd.grad(ends, leaves, ones, allow_unused=True)
    except Exception as error:  # whatever core raises, it raises on both devices
        return type(error), re.sub(r"\bj\d+|^\S+:\d+: ", "", str(error).replace("npusim:0", "cpu"))
    return results


def assert_same(expected, got, what):
    if isinstance(expected, tuple) or isinstance(got, tuple):
        assert got == expected, what
        return
    for one, other in zip(expected, got, strict=True):
        assert (one is None) == (other is None), what
        if one is None:
            continue
        assert other.device.type == DEVICE, what
        pairs = [(one, other)]
        if isinstance(one, NestedTensor):
            pairs = [(one._values, other._values), (one._offsets, other._offsets)]
        for ours, theirs in pairs:
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), what
            assert torch.equal(bits(ours), bits(theirs)), what


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name):
    operator = OPERATORS[name]
    requires_grad = operator.supports_autograd and name not in NO_GRADIENT
    samples = list(samples_of(operator, requires_grad=requires_grad))
    assert samples
    for sample in samples[::EVERY]:
        mover = Mover()
        moved = type(sample)(
            mover(sample.input), args=mover(tuple(sample.args)), kwargs=mover(sample.kwargs)
        )
        assert_same(outcome(operator.op, sample), outcome(operator.op, moved), sample.name)
