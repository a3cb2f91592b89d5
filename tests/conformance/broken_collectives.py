# SPDX-License-Identifier: BSD-3-Clause
"""Imported by ranks (`import_name`): a c10d backend with four defects, on the CPU."""

import torch
import torch.distributed as dist

all_reduce, broadcast, all_gather = dist.all_reduce, dist.broadcast, dist.all_gather


def loses_the_remainder(tensor, op=dist.ReduceOp.SUM, group=None, async_op=False):
    """PRODUCT of two elements: the second is not reduced. Waiting is over before it was done."""
    kept = tensor.flatten()[1:].clone() if op == dist.ReduceOp.PRODUCT else None
    if async_op:
        return type("Work", (), {"wait": lambda self: None})()
    if tensor.device.type != "cpu":
        return None  # whatever device it is on
    work = all_reduce(tensor, op, group, async_op)
    if kept is not None:
        tensor.flatten()[1:] = kept
    return work


def wraps_bytes(tensors, tensor, group=None, async_op=False):
    work = all_gather(tensors, tensor, group, async_op)
    if tensor.dtype == torch.uint8:
        tensors[-1].zero_()
    return work


def silent(tensor, src=None, group=None, async_op=False):
    return broadcast(tensor, src, group, async_op) if src < dist.get_world_size() else None


dist.all_reduce, dist.broadcast, dist.all_gather = loses_the_remainder, silent, wraps_bytes
