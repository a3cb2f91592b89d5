# SPDX-License-Identifier: BSD-3-Clause
"""Every collective with one argument that differs on one rank: all ranks are told, in our words."""

import pytest
import torch
import torch.distributed as dist
from rank_processes import run_ranks

from torch_npusim.testing import run_ranks as run_threads

SIZE = 2
# Words of the transport and of Python's machinery, none of which a user has written.
FOREIGN = ("gloo", "Gloo", "Enforce", "contextlib", "transport/", "preamble", "op.", "Connection")


def ones(count=4, dtype=torch.float32):
    return torch.ones(count, dtype=dtype, device="npusim")


def exchange(sends, expects):
    x, y = ones(sum(sends)), ones(sum(expects))
    dist.all_to_all_single(y, x, expects, sends)
    return y


def exchange_lists(sends, expects):
    outputs = [ones(n) for n in expects]
    dist.all_to_all(outputs, [ones(n) for n in sends])
    return outputs[0]


def together(count):
    x = [ones() for _ in range(count)]
    with dist._coalescing_manager(device=torch.device("npusim")):
        for one in x:
            dist.all_reduce(one)
    return x[0]


def gathered(x):
    dist.all_gather_into_tensor(y := ones(SIZE * x.numel(), x.dtype), x)
    return y


def scattered(x):
    dist.reduce_scatter_tensor(y := ones(x.numel() // SIZE, x.dtype), x)
    return y


def reduced(x, op=dist.ReduceOp.SUM, group=None):
    dist.all_reduce(x, op, group=group)
    return x


def sent(x, root=0):
    dist.broadcast(x, root)
    return x


# The call of rank 0, and that of rank 1.
CALLS = {
    "all_to_all_single, splits": (
        lambda: exchange([1, 3], [1, 2]),
        lambda: exchange([1, 3], [1, 3]),
    ),
    "all_to_all_single, too many": (
        lambda: exchange([2, 2], [2, 2]),
        lambda: exchange([3, 1], [2, 1]),
    ),
    "all_to_all, sizes": (
        lambda: exchange_lists([1, 3], [1, 2]),
        lambda: exchange_lists([1, 3], [2, 3]),
    ),
    "coalesced, number": (lambda: together(2), lambda: together(1)),
    "all_reduce, shape": (lambda: reduced(ones(4)), lambda: reduced(ones(5))),
    "all_reduce, dtype": (lambda: reduced(ones(4)), lambda: reduced(ones(4, torch.int64))),
    "all_reduce, op": (lambda: reduced(ones(4)), lambda: reduced(ones(4), dist.ReduceOp.MAX)),
    "broadcast, root": (lambda: sent(ones(4)), lambda: sent(ones(4), 1)),
    "broadcast, shape": (lambda: sent(ones(4)), lambda: sent(ones(8))),
    "all_gather, shape": (lambda: gathered(ones(4)), lambda: gathered(ones(2))),
    "reduce_scatter, shape": (lambda: scattered(ones(4)), lambda: scattered(ones(8))),
    "another collective": (lambda: sent(ones(4)), lambda: reduced(ones(4))),
    "no collective": (lambda: reduced(ones(4)), lambda: ones()),
}


def words(name):
    """The error of this rank, or nothing."""
    try:
        CALLS[name][dist.get_rank()]().tolist()
    except dist.DistBackendError as error:
        return str(error)
    return ""


def in_a_process(rank, size, store, name):
    torch.npusim.set_device(rank)
    where = f"file://{store}"
    dist.init_process_group("simccl", init_method=where, rank=rank, world_size=size)
    return words(name)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("ranks_are", ["processes", "threads"])
def test_all_ranks_are_told(name, ranks_are):
    if ranks_are == "processes":
        said = run_ranks(in_a_process, SIZE, name)
    else:
        said = run_threads(words, SIZE, name)
    told = [text for text in said if text]
    assert told, "nobody is told"
    if "number" not in name and "no collective" not in name:
        assert len(told) == SIZE
        assert all("disagree" in text for text in told), told
    for text in told:
        assert "test_one_rank_differs.py" in text, text
        assert not [word for word in FOREIGN if word in text], text
