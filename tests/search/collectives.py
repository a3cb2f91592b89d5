# SPDX-License-Identifier: BSD-3-Clause
"""Collectives and transfers of two to four ranks, in threads or processes, and one wrong argument.

Oracle: gloo on CPU tensors, called beside each collective. Where one rank's arguments differ, every
rank that takes part is told, in words of simccl.
"""

from engine import Program

START = """
import contextlib, tempfile, threading
from datetime import timedelta
import torch, torch.distributed as dist, torch.multiprocessing as mp
from torch.distributed import ReduceOp
from torch_npusim import testing
me, steps = threading.local(), []

def new(name, dtype, count):
    x = ((torch.arange(count) * 3 + me.rank * 5) % 7 - 3).to(dtype)
    me.x[name] = x.to("npusim"), x

parts = lambda x, g: list(x.chunk(g.size()))
def swap(x, g, how, sends, expects):
    out = torch.empty(sum(expects), dtype=x.dtype, device=x.device)
    return [out], dist.all_to_all_single(out, x[:sum(sends)], expects, sends, group=g, async_op=how)
def lists(x, g, how):
    outs = [torch.empty_like(one) for one in parts(x, g)]
    if not x.is_cpu:
        return outs, dist.all_to_all(outs, parts(x, g), group=g, async_op=how)
    dist.all_to_all_single(whole := torch.cat(outs), x, group=g)
    return parts(whole, g), None
def mean(x, g, how):  # gloo has none
    is_whole = not x.is_floating_point()
    work = dist.all_reduce(x, ReduceOp.SUM if x.is_cpu or not is_whole else ReduceOp.AVG, g, how)
    return [x.div_(g.size(), rounding_mode="trunc") if x.is_cpu and is_whole else x], work
def made(call, like):  # of collectives that write to new memory: a tensor, or one for each rank
    def collective(x, g, how, *args):
        out = like(x, g)
        return (out if isinstance(out, list) else [out]), call(out, x, g, how, *args)
    return collective

whole = lambda x, g: [torch.zeros_like(x) for _ in range(g.size())]
share = lambda x, g: x.new_empty(x.numel() // g.size())
at = lambda root, given, g: given if g.rank() == root else None

CALLS = {
    "all_reduce": lambda x, g, how, op: ([x], dist.all_reduce(x, op, g, how)),
    "broadcast": lambda x, g, how, root: (
        [x], dist.broadcast(x, group_src=root, group=g, async_op=how)),
    "reduce": lambda x, g, how, root: (
        [y := x.clone()] if g.rank() == root else [x],  # gloo writes to the others' operands
        dist.reduce(y if g.rank() == root else x.clone(), group_dst=root, group=g, async_op=how)),
    "all_gather": made(lambda o, x, g, how: dist.all_gather(o, x, g, how), whole),
    "gather_into": made(lambda o, x, g, how: dist.all_gather_into_tensor(o, x, g, how),
        lambda x, g: x.new_empty(g.size() * x.numel())),
    "scatter_into": made(
        lambda o, x, g, how, op: dist.reduce_scatter_tensor(o, x, op, g, how), share),
    "reduce_scatter": made(
        lambda o, x, g, how, op: dist.reduce_scatter(o, parts(x, g), op, g, how), share),
    "gather": made(lambda o, x, g, how, root: dist.gather(
        x, at(root, o, g), group_dst=root, group=g, async_op=how), whole),
    "scatter": made(lambda o, x, g, how, root: dist.scatter(
        o, at(root, parts(x, g), g), group_src=root, group=g, async_op=how), share),
    "swap": swap, "lists": lists, "mean": mean,
}

def on(stream):
    me.streams[stream].wait_stream(me.last)
    me.last = me.streams[stream]
    return torch.npusim.stream(me.last)

def call(name, x, group, stream, how, *args):
    g, ranks = me.groups[group]
    if me.rank not in ranks:
        return
    args = [a[ranks.index(me.rank)] if isinstance(a, list) else a for a in args]
    with on(stream):
        outs, work = CALLS[name](me.x[x][0], g, how, *args)
    me.under_way.append((work, outs, CALLS[name](me.x[x][1], g, False, *args)[0], name))
    how or finish(stream)

def finish(stream=0):
    with on(stream):
        for work, *_ in me.under_way:
            work and work.wait()
        for _, outs, expected, name in me.under_way:
            for out, true in zip(outs, expected, strict=True):
                assert torch.equal(out.cpu(), true), (name, me.rank, out.cpu(), true)
        me.under_way.clear()
        for pair in me.x.values():
            for one in pair:
                one.remainder_(7)

def write(x, stream):
    with on(stream):
        for one in me.x[x]:
            one.add_(me.rank)

def together(names, group, stream, how):
    g, ranks = me.groups[group]
    if me.rank in ranks:
        device = torch.device("npusim", me.rank)
        with on(stream), dist._coalescing_manager(g, device, how) as work:
            for x in names:
                dist.all_reduce(me.x[x][0], group=g)
        for x in names:
            dist.all_reduce(me.x[x][1], group=g)
            me.under_way.append((how and work, [me.x[x][0]], [me.x[x][1]], "together"))
        how or finish(stream)

def transfers(pairs, x, stream, batch):
    finish(stream)
    ops, works = [], []
    with on(stream):
        for tag, (a, b) in enumerate(pairs):
            for end, peer, is_send in ((a, b, True), (b, a, False)):
                if me.rank == end:
                    mine, host = (one + tag if is_send else one * 0 for one in me.x[x])
                    does = (dist.isend if is_send else dist.irecv)
                    batch or (dist.send if is_send else dist.recv)(mine, peer)
                    ops.append(dist.P2POp(does, mine, peer))
                    works.append(a != b and does(host, peer, tag=tag))
                    a == b and host.copy_(me.x[x][1] + tag)
                    me.under_way.append((works[-1], [mine], [host], "transfer"))
        if batch and ops:
            me.under_way += [(work, [], [], "") for work in dist.batch_isend_irecv(ops)]
    finish(stream)

FOREIGN = "gloo", "Gloo", "Enforce", "transport/", "Connection", "preamble", "op."
NOTHING = object()

def differs(rank, group, right, wrong):
    if me.rank not in me.groups[group][1]:
        return
    finish()
    g, x = me.groups[group][0], torch.ones(12, device="npusim")
    try:
        done = (wrong if me.rank == rank else right)(x, g)
        torch.npusim.synchronize()
    except Exception as error:
        assert not [word for word in FOREIGN if word in str(error)], str(error)
        assert me.rank == rank or isinstance(error, dist.DistBackendError), repr(error)
        for _ in me.streams:  # each stream that waited for it tells it once
            with contextlib.suppress(RuntimeError):
                torch.npusim.synchronize()
    else:
        assert me.rank == rank and done is NOTHING, f"rank {me.rank} is not told"

def rank_main():
    me.rank, me.x, me.under_way = dist.get_rank(), {}, []
    me.groups = {"world": (dist.group.WORLD, list(range(dist.get_world_size())))}
    me.last = torch.npusim.current_stream()
    me.streams = me.last, torch.npusim.Stream()
    for step in steps:
        step()
    me.under_way and finish()

def process_main(rank, ranks, place):
    torch.npusim.set_device(rank)
    dist.init_process_group("cpu:gloo,npusim:simccl", init_method=f"file://{place}",
                            rank=rank, world_size=ranks, timeout=timedelta(seconds=8))
    rank_main()

def run(ranks, threads):
    if threads:
        return testing.run_ranks(rank_main, ranks, timeout=8)
    mp.start_processes(process_main, (ranks, tempfile.mktemp()), ranks, start_method="fork")
"""
TYPES = "float32 float64 float16 bfloat16 int8 uint8 int32 int64".split()
OPS = ("ReduceOp.SUM", "ReduceOp.MIN", "ReduceOp.MAX", "ReduceOp.PRODUCT")
NEEDS = {"all_reduce": "op", "scatter_into": "op", "reduce_scatter": "op", "swap": "splits"}
NEEDS |= dict.fromkeys(("broadcast", "reduce", "gather", "scatter"), "root")
NEEDS |= dict.fromkeys(("all_gather", "gather_into", "lists", "mean"), "")
# Collectives of twelve numbers, and each with something else than the other ranks have.
RIGHT = {
    "dist.all_reduce({x}, group=g)": ("{x}[:6]", "{x}.int()", "{x}[::2]"),
    "dist.broadcast({x}, group_src=0, group=g)": ("{x}[:6]", "{x}.half()", "{x}[:0]"),
    "dist.all_gather_into_tensor(x.new_empty(12 * g.size()), {x}, g)": ("{x}[:6]", "{x}.long()"),
    "dist.reduce({x}, group_dst=0, group=g)": ("{x}[:4]", "{x}.double()"),
    "CALLS['lists']({x}, g, False)": ("torch.ones(24, device='npusim')",),
    "CALLS['swap']({x}, g, False, [3] * g.size(), [3] * g.size())": (),
}
WRONG = (
    "dist.all_reduce(x, ReduceOp.MAX, g)",
    "dist.broadcast(x, group_src=1, group=g)",
    "dist.reduce(x, group_dst=1, group=g)",
    "dist.barrier(g, device_ids=[me.rank])",
    "CALLS['swap'](x, g, False, [1] * g.size(), [3] * g.size())",
    "CALLS['swap'](x, g, False, [3] * g.size(), [2] * g.size())",
)


def arguments(random, name: str, size: int) -> str:
    """The last arguments of a collective, for all ranks alike; a list has one for each."""
    if NEEDS[name] == "splits":
        sends = [[random.randint(0, 3) for _ in range(size)] for _ in range(size)]
        return f", {sends}, {[list(one) for one in zip(*sends, strict=True)]}"
    one = {"op": random.choice(OPS), "root": str(random.randrange(size)), "": ""}[NEEDS[name]]
    return one and f", {one}"


def program(random) -> Program:
    """Five to fourteen steps of all ranks; some programs end with a wrong one."""
    ranks = random.randint(2, 4)
    groups, tensors, busy, lines = {"world": list(range(ranks))}, {}, {}, []
    for n in range(random.randint(5, 14)):
        stream, group = random.randrange(2), random.choice(list(groups))
        choice, how = random.random(), random.random() < 0.5
        if len(tensors) < 2 or choice < 0.1:
            tensors[f"t{n}"] = random.choice(TYPES)
            lines.append(f'new("t{n}", torch.{tensors[f"t{n}"]}, {random.choice((12, 48, 4800))})')
            continue
        x = random.choice(list(tensors))
        name = random.choice(list(NEEDS)) if choice < 0.6 else ""  # "reduce" copies its operand
        if choice > 0.8 or (busy and (busy.get(x, group) != group or not how or name == "reduce")):
            lines.append(f"finish({stream})")
            busy.clear()
        if name:
            more = arguments(random, name, len(groups[group]))
            lines.append(f'call("{name}", "{x}", "{group}", {stream}, {how}{more})')
            busy |= {x: group} if how else {}
        elif choice < 0.7:
            alike = [one for one in tensors if tensors[one] == tensors[x]]
            lines += [f"finish({stream})", f'together({alike}, "{group}", {stream}, {how})']
            busy = dict.fromkeys(alike, group) if how else {}
        elif choice < 0.8:
            pairs = [(random.randrange(ranks), random.randrange(ranks)) for _ in range(4)]
            pairs = [(a, b) for a, b in pairs if how or a != b]
            lines.append(f'transfers({pairs}, "{x}", {stream}, {how})')
            busy.clear()
        elif choice < 0.87:
            groups[f"g{n}"] = sorted(random.sample(range(ranks), random.randint(1, ranks)))
            ranks_of = groups[f"g{n}"]
            lines.append(f"me.groups.update(g{n}=(dist.new_group({ranks_of}), {ranks_of}))")
        else:
            lines.append(f'write("{x}", {stream})')
    if random.random() < 0.4:
        right, others = random.choice(list(RIGHT.items()))
        group = random.choice([one for one in groups if len(groups[one]) > 1])
        wrong = right.replace("{x}", random.choice(others)) if others else random.choice(WRONG)
        wrong = random.choice((wrong, wrong, random.choice(WRONG), "NOTHING"))
        right, rank = right.replace("{x}", "x"), random.choice(groups[group])
        if right != wrong:
            lines.append(f'differs({rank}, "{group}", lambda x, g: {right}, lambda x, g: {wrong})')
    lines = [f"steps.append(lambda: {line})" for line in lines]
    return Program(tuple(lines), START, "", f"run({ranks}, threads={random.random() < 0.7})")
