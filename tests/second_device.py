# SPDX-License-Identifier: BSD-3-Clause
"""Operands on npusim:1 while npusim:0 is current: torch's own samples of every operator.

Everything must happen on npusim:1: results and gradients lie there, have the CPU's values, and
npusim:0 has not lent a byte, not even for a moment. `python tests/second_device.py [NAME ...]`
runs all samples of the named operators, or of all; ops/test_second_device.py runs some.
"""

import sys
import warnings
from collections.abc import Iterator
from typing import Any

import oracle
import torch
from ops.swept import samples_of
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

import torch_npusim  # noqa: F401  (for where autoload has stepped back)

CURRENT, OTHER = 0, 1
# These give whatever the memory held.
WITHOUT_VALUES = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"}
WITHOUT_VALUES |= {"empty_permuted"}

# Operators that draw without a tag of their own, by a part of the name.
DRAWS = ("fractional_max_pool", "lowrank")


def draws(op: OpInfo, sample: SampleInput) -> bool:
    """Whether the values depend on the generator: those of two devices differ by contract."""
    if "dropout" in op.name or "attention" in op.name:
        rate = sample.kwargs.get("p", sample.kwargs.get("dropout_p", 0.5))
        return not op.name.endswith("backward") and sample.kwargs.get("training", True) and rate > 0
    if any(part in op.name for part in DRAWS):
        return True
    packet = getattr(torch.ops.aten, op.name.split(".")[-1], None)
    overloads = packet.overloads() if packet is not None else []
    return any(
        torch.Tag.nondeterministic_seeded in getattr(packet, name).tags for name in overloads
    )


def samples(op: OpInfo, limit: int | None = None) -> Iterator[SampleInput]:
    """Samples on the CPU, of a dtype with gradients where there is one."""
    dtypes = op.supported_dtypes("cpu")
    wished = (torch.float32, torch.float64, torch.int64, torch.bool, *dtypes)
    dtype = next((d for d in wished if d in dtypes), None)
    if dtype is None:
        return
    grad = op.supports_autograd and dtype.is_floating_point
    for number, sample in enumerate(samples_of(op, dtype, grad)):
        if number == limit:
            return
        yield sample


def call(op: OpInfo, sample: SampleInput, move: Any) -> tuple[Any, list[torch.Tensor | None]]:
    """The result, and the gradients of all inputs."""
    inputs = move((sample.input, sample.args, sample.kwargs))
    result = op(inputs[0], *inputs[1], **inputs[2])
    leaves = [leaf for leaf in oracle.tensors_of(inputs) if leaf.requires_grad]
    loss = oracle._loss_of(result)
    if loss is None or not leaves:
        return result, []
    return result, list(torch.autograd.grad(loss, leaves, allow_unused=True))


def same_values(expected: torch.Tensor, got: torch.Tensor) -> bool:
    if got.layout != torch.strided or got.is_nested:
        expected, got = oracle._dense_of(expected), oracle._dense_of(got)
    if expected.is_quantized:
        expected, got = expected.int_repr(), got.int_repr()
    expected, got = expected.detach(), got.detach().cpu()
    if expected.is_floating_point() and expected.itemsize == 1:
        expected, got = expected.float(), got.float()
    return expected.shape == got.shape and torch.allclose(
        expected, got, rtol=1e-4, atol=1e-5, equal_nan=True
    )


def fault_of(op: OpInfo, sample: SampleInput) -> str | None:
    """The operator's error on the other device, if anything is."""
    other = torch.device("npusim", OTHER)
    try:
        expected, expected_grads = call(op, sample, lambda tree: tree)
    except Exception:  # the CPU cannot do it either
        return None
    mover = oracle.Mover(str(other))
    moved = oracle.pytree.tree_leaves(mover((sample.input, sample.args, sample.kwargs)))
    if not any(getattr(leaf, "device", leaf) == other for leaf in moved):
        return None  # nothing says that it should happen there
    del moved
    torch.npusim.reset_peak_memory_stats(CURRENT)
    before = torch.npusim.memory_allocated(CURRENT)
    try:
        got, got_grads = call(op, sample, mover)
    except Exception as error:
        if "to be on cpu" in str(error):  # a rule of tensor_split, on every device
            return None
        return f"raises {type(error).__name__}: {str(error).splitlines()[0][:150]}"
    if torch.npusim.current_device() != CURRENT:
        torch.npusim.set_device(CURRENT)
        return "left another device current"
    peak = torch.npusim.max_memory_allocated(CURRENT) - before
    pairs = list(zip(oracle.tensors_of(expected), oracle.tensors_of(got), strict=True))
    pairs += [
        (one, two) for one, two in zip(expected_grads, got_grads, strict=True) if one is not None
    ]
    stray = next((two.device for _, two in pairs if two.device != other), None)
    if stray is not None:
        return f"a result lies on {stray}"
    if peak > 0:
        return f"took {peak} bytes of the current device"
    with_values = op.name not in WITHOUT_VALUES and not draws(op, sample)
    for one, two in pairs:
        if with_values and not same_values(one, two):
            return "other values than the CPU's"
    return None


def faults(op: OpInfo, limit: int | None = None) -> list[str]:
    found = []
    for number, sample in enumerate(samples(op, limit)):
        if (fault := fault_of(op, sample)) is not None:
            found.append(f"{op.full_name} sample {number}: {fault}")
    return found


def main(names: list[str]) -> int:
    warnings.simplefilter("ignore")
    total = 0
    chosen = [op for op in op_db if not names or op.full_name in names or op.name in names]
    for op in chosen:
        found = faults(op)
        total += len(found)
        for line in found[:3]:
            print(line, flush=True)
    print(f"{len(chosen)} operators, {total} faults")
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
