# SPDX-License-Identifier: BSD-3-Clause
"""One collective after another on the same bytes, in the order that is worst for them.

A table of all ordered pairs of collectives, waited for or not, beside gloo on CPU. In each case one
rank begins only when the others have asked for both collectives: gloo then has the second while the
first cannot have moved anything. `make parallel` runs all cases, `make test` a sample.
"""

import itertools
import os
import random
import socket
import time

import pytest
import torch
import torch.distributed as dist
from rank_processes import run_ranks
from torch.distributed import ReduceOp
from torch.distributed import _functional_collectives as functional

from torch_npusim.sim import races
from torch_npusim.testing import run_ranks as run_threads

COUNTS = (1, 64, 4096, 65536)  # elements for each rank
LATEST = 0.02  # seconds for which the late rank waits: the others may be waiting for it
WHOLE = os.environ.get("NPUSIM_TESTS") == "parallel"


def rank_of():
    return dist.get_rank()


def ranks():
    return dist.get_world_size()


def pieces(x):
    return list(x.chunk(ranks()))


def uneven(x):
    """As many parts as ranks, the first and the last of different lengths if there is room."""
    lengths = [len(x) // ranks()] * ranks()
    if lengths[0] > 1:
        lengths[0] -= 1
        lengths[-1] += 1
    return list(x.split(lengths))


# Each takes what it reads, what it may write and how, and returns what it wrote and its work.
# Arguments of CPU are for gloo, which lacks some operations and needs help with others.


def all_reduce(x, _, how, op=ReduceOp.SUM):
    return x, dist.all_reduce(x, op=op, async_op=how)


def average(x, _, how):
    if x.device.type == "cpu":
        dist.all_reduce(x)
        return x.div_(ranks()), None
    return all_reduce(x, _, how, ReduceOp.AVG)


def greatest(x, _, how):
    return all_reduce(x, _, how, ReduceOp.MAX)


def broadcast(x, _, how):
    return x, dist.broadcast(x, src=ranks() - 1, async_op=how)


def reduce(x, _, how):
    # Gloo scribbles on the operands of the other ranks.
    mine = x.clone() if x.device.type == "cpu" and rank_of() != 0 else x
    return x, dist.reduce(mine, dst=0, async_op=how)


def all_gather(x, out, how):
    return out, dist.all_gather(pieces(out), pieces(x)[0], async_op=how)


def all_gather_uneven(x, out, how):
    if x.device.type == "cpu":
        for root, (part, mine) in enumerate(zip(uneven(out), uneven(x), strict=True)):
            if root == rank_of():
                part.copy_(mine)
            dist.broadcast(part, src=root)
        return out, None
    return out, dist.all_gather(uneven(out), uneven(x)[rank_of()], async_op=how)


def all_gather_into_tensor(x, out, how):
    return out, dist.all_gather_into_tensor(out, pieces(x)[0], async_op=how)


def reduce_scatter(x, out, how):
    return out, dist.reduce_scatter(pieces(out)[0], pieces(x), async_op=how)


def reduce_scatter_tensor(x, out, how):
    return out, dist.reduce_scatter_tensor(pieces(out)[0], x, async_op=how)


def all_to_all_single(x, out, how):
    return out, dist.all_to_all_single(out, x, async_op=how)


def all_to_all(x, out, how):
    if x.device.type == "cpu":
        return all_to_all_single(x, out, how)
    return out, dist.all_to_all(pieces(out), pieces(x), async_op=how)


def gather(x, out, how):
    to = pieces(out) if rank_of() == 0 else None
    return out, dist.gather(pieces(x)[0], to, dst=0, async_op=how)


def scatter(x, out, how):
    last = ranks() - 1
    from_ = pieces(x) if rank_of() == last else None
    return out, dist.scatter(pieces(out)[0], from_, src=last, async_op=how)


def many_all_reduces(x, _, how):
    if x.device.type == "cpu":
        return all_reduce(x, _, how)
    with dist._coalescing_manager(device=x.device, async_ops=how) as many:
        for part in pieces(x):
            dist.all_reduce(part)
    return x, many if how else None


def many_reduce_scatters(x, out, how):
    if x.device.type == "cpu":
        return reduce_scatter_tensor(x, out, how)
    with dist._coalescing_manager(device=x.device, async_ops=how) as many:
        dist.reduce_scatter_tensor(pieces(out)[0], x)
    return out, many if how else None


def functional_all_reduce(x, out, _):
    return functional.wait_tensor(functional.all_reduce(x, "sum", dist.group.WORLD)), None


def functional_reduce_scatter(x, out, _):
    part = functional.reduce_scatter_tensor(x, "sum", 0, dist.group.WORLD)
    return functional.wait_tensor(part).repeat(ranks()), None


def functional_all_gather(x, out, _):
    mine = pieces(x)[0]
    return functional.wait_tensor(functional.all_gather_tensor(mine, 0, dist.group.WORLD)), None


def ring(x, out, _):
    there, here = (rank_of() + 1) % ranks(), (rank_of() - 1) % ranks()
    both = [dist.P2POp(dist.isend, x, there), dist.P2POp(dist.irecv, out, here)]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    return out, None


def pairs(x, out, _):
    other = rank_of() ^ 1
    if rank_of() % 2 == 0:
        dist.send(x, other)
        dist.recv(out, other)
    else:
        dist.recv(out, other)
        dist.send(x, other)
    return out, None


IN_PLACE = (all_reduce, average, greatest, broadcast, reduce, many_all_reduces)
# They read or write on streams that nothing orders with those of other collectives before wait().
APART = (ring, pairs, functional_all_reduce)
KINDS = (
    *IN_PLACE,
    *(all_gather, all_gather_uneven, all_gather_into_tensor),
    *(reduce_scatter, reduce_scatter_tensor, many_reduce_scatters),
    *(all_to_all_single, all_to_all, gather, scatter),
    *(functional_reduce_scatter, functional_all_gather),
    *APART,
)

# Whether the first and the later ones are asynchronous, and whether each is waited for before the
# next is asked for. A synchronous one after one that nobody has waited for is a race.
SYNC, ASYNC = (False, False, True), (True, True, False)
HOWS = (SYNC, ASYNC, (False, True, True), (True, False, True))
READS, OVERWRITES_OPERAND, OVERWRITES_RESULT = USES = range(3)  # what the second does


def all_cases():
    """Yields kinds, how they are asked for, the use of the first one's tensors, and the count."""
    turn = itertools.count()
    for pair in itertools.product(KINDS, KINDS):
        for count in COUNTS:
            for how in HOWS if count == COUNTS[1] else (SYNC, ASYNC):
                yield pair, how, USES[next(turn) % 3], count
    draw = random.Random(25)
    for _ in range(300):
        triple = tuple(draw.choice(KINDS) for _ in range(3))
        yield triple, draw.choice((SYNC, ASYNC)), READS, draw.choice(COUNTS[:3])


EACH = 1 if WHOLE else 71  # one in so many: each kind still comes first, and second


def operands(case, device):
    kinds, _, _, count = case
    values = torch.arange(count * ranks(), dtype=torch.float32) % 7 + 3 * rank_of()
    return [(values + k).to(device) for k in range(2 + len(kinds))]


def ask(case, tensors):
    """Asks for the collectives; returns work that is not waited for, and the last result."""
    kinds, (first_async, later_async, waits), use, _ = case
    operand, other, *outs = tensors
    on_cpu = operand.device.type == "cpu"
    source, works = operand, []
    for k, (kind, out) in enumerate(zip(kinds, outs, strict=True)):
        if k > 0 and use != READS:
            out = operand if use == OVERWRITES_OPERAND else source
            source = out if kind in IN_PLACE else other
        if waits or kind in APART:
            while works:
                works.pop().wait()
        how = not on_cpu and (later_async if k > 0 else first_async)
        source, work = kind(source, out, how)
        if how and work is not None:
            works.append(work)
    return works, source


class Bells:
    """The late rank hears when the others have asked for everything."""

    def __init__(self, place):
        self.place = place
        self.mine = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.mine.bind(f"{place}.{rank_of()}")

    def ring(self, late, number):
        self.mine.sendto(str(number).encode(), f"{self.place}.{late}")

    def hear(self, number):
        deadline, heard = time.monotonic() + LATEST, 0
        while heard < ranks() - 1 and (left := deadline - time.monotonic()) > 0:
            self.mine.settimeout(left)
            try:
                heard += int(self.mine.recv(32)) == number
            except TimeoutError:
                return


def as_gloo_has_it(case, number, bells):
    """Returns whether the values are those of gloo on CPU."""
    there = operands(case, "cpu")
    _, last = ask(case, there)
    wanted = [*there, last]
    here = operands(case, "npusim")
    torch.npusim.synchronize()
    late = number % ranks()
    if rank_of() == late:
        bells.hear(number)
    works, last = ask(case, here)
    if rank_of() != late:
        bells.ring(late, number)
    for work in works:
        work.wait()
    return all(torch.equal(a.cpu(), b) for a, b in zip([*here, last], wanted, strict=True))


def beside_gloo(place, each):
    """Returns the cases whose values differ from those of gloo."""
    bells = Bells(place)
    dist.barrier()
    wrong = []
    for number, case in enumerate(itertools.islice(all_cases(), 0, None, each)):
        if not as_gloo_has_it(case, number, bells):
            wrong.append(f"{' then '.join(kind.__name__ for kind in case[0])}, {case[1:]}")
    dist.barrier()  # somebody may still ring
    return wrong


def in_processes(rank, size, store, each):
    torch.npusim.set_device(rank)
    dist.init_process_group(
        "cpu:gloo,npusim:simccl", init_method=f"file://{store}", rank=rank, world_size=size
    )
    with races.record() as recorded:
        wrong = beside_gloo(f"{store}.bell", each)
    dist.destroy_process_group()
    return wrong + [str(race) for race in recorded.races]


def in_threads(_rank, _size, store, threads, each):
    with races.record() as recorded:
        wrong = run_threads(beside_gloo, threads, f"{store}.bell", each, timeout=3000)
    return [*wrong, [str(race) for race in recorded.races]]


@pytest.mark.parametrize("ranks_are", ["processes", "threads"])
@pytest.mark.parametrize("size", [2, 4] if WHOLE else [2])
def test_what_comes_after_a_collective_comes_after_it(size, ranks_are):
    limit = 3000 if WHOLE else 120
    if ranks_are == "processes":
        wrong = run_ranks(in_processes, size, EACH, timeout=limit)
    else:
        (wrong,) = run_ranks(in_threads, 1, size, EACH, timeout=limit)
    lines = sorted({line for of_rank in wrong for line in of_rank})
    assert not lines, "\n".join(lines)
