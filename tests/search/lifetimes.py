# SPDX-License-Identifier: BSD-3-Clause
"""Allocations, frees, streams, pools, graphs and settings in any order.

Oracle: each live tensor keeps its number; no two share bytes; the bytes asked for are those of the
live tensors; at the end nothing is left.
"""

from engine import DEVICES, Program, parts

START = """
import contextlib, gc
import torch, torch_npusim
D, npu = DEVICE
SETTINGS
Graph = npu.CUDAGraph if D == "cuda" else npu.NPUSIMGraph
streams = [npu.current_stream(), npu.Stream(), npu.Stream()]
live, pools, ids, graphs = {}, {}, {}, {}

def new(name, count, number, stream=0, pool=None):
    kept = npu.use_mem_pool(pools[pool]) if pool in pools else contextlib.nullcontext()
    with npu.stream(streams[stream]), kept:
        live[name] = torch.full((count,), number, device=D), number
    streams[0].wait_stream(streams[stream])

def use(name, stream):
    if name in live:
        streams[stream].wait_stream(streams[0])
        with npu.stream(streams[stream]):
            live[name][0].add_(0)
        live[name][0].record_stream(streams[stream])
        streams[0].wait_stream(streams[stream])

def view(name, of):
    if of in live:
        live[name] = live[of][0][1:], live[of][1]

def capture(name, count, number, pool=None):
    graph = Graph()
    index = torch.arange(count, device=D)
    with npu.graph(graph, pool=ids.get(pool)):
        tensor = torch.full((count,), number, device=D)[torch.arange(count - 1, -1, -1, device=D)]
        tensor = tensor.gather(0, index) + 0
    ids[name] = graph.pool()
    graphs[name] = graph, tensor, number, index

def replay(name):
    if name in graphs:
        graph, tensor, number, _ = graphs[name]
        before = npu.memory_stats()["allocated_bytes.all.current"]
        graph.replay()
        assert npu.memory_stats()["allocated_bytes.all.current"] == before
        assert bool((tensor == number).all()), f"{name}: the replay's result is {tensor.cpu()}"

def drop(name):
    for things in (live, pools, graphs):
        things.pop(name, None)

def too_much():
    with contextlib.suppress(torch.OutOfMemoryError):
        raise AssertionError(f"64 GiB of 1 GiB: {torch.empty(1 << 34, device=D).shape}")

def check():
    owned = [pair[0] for pair in live.values()]
    owned += [t for graph in graphs.values() for t in (graph[1], graph[3])]
    owned = {s._cdata: s for s in map(torch.Tensor.untyped_storage, owned)}.values()
    spans = sorted((s.data_ptr(), s.nbytes()) for s in owned)
    for (begin, size), (after, _) in zip(spans, spans[1:]):
        assert begin + size <= after, "two live tensors share bytes"
    for name, (tensor, number) in live.items():
        assert bool((tensor == number).all()), f"{name} has changed: {tensor.cpu()}"
    if D != "cuda":  # captures have memory for generators there
        npu.synchronize()
        torch.empty(1, device=D)  # a request looks for blocks that other streams have done with
        asked = npu.memory_stats()["requested_bytes.all.current"]
        assert asked == sum(size for _, size in spans), (asked, spans)
"""
END = """
for things in (live, graphs, pools):
    things.clear()
gc.collect()
npu.synchronize()
npu.empty_cache()
assert npu.memory_allocated() == 0, npu.memory_allocated()
assert npu.memory_reserved() == 0, npu.memory_reserved()
"""
SETTINGS = """; expandable_segments:True; max_split_size_mb:21; roundup_power2_divisions:4;
    garbage_collection_threshold:0.5"""
SIZES = (1, 3, 100, 5000, 70000, 300000, 1500000)


def program(random) -> Program:
    """Twelve to fifty steps."""
    lines, tensors, pools, graphs = [], [], [], []
    for n in range(random.randint(12, 50)):
        count, number = random.choice(SIZES), float(n)
        one = random.choice(tensors or ["none"])
        graph, stream = random.choice(graphs or ["none"]), random.randrange(3)
        pool = random.choice(pools) if pools and random.random() < 0.4 else None
        of = random.choice([*graphs, pool])
        steps = {
            f'new("t{n}", {count}, {number}, {stream}, {pool!r})': 10,
            f'drop("{one}")': 6,
            f'use("{one}", {stream})': 3,
            f'view("v{n}", "{one}")': 1,
            f'pools["p{n}"] = npu.MemPool()\nids["p{n}"] = pools["p{n}"].id': 1,
            f'drop("{pool}")': 1,
            f'capture("g{n}", {random.choice(SIZES[:4]) + 1}, {number}, {of!r})': 3,
            f'replay("{graph}")': 4,
            f'drop("{graph}")': 1,
            "npu.empty_cache()": 1,
            "npu.synchronize()": 1,
            "gc.collect()": 1,
            "too_much()": 1,
        }
        (line,) = random.choices(list(steps), list(steps.values()))
        kind = line.partition("(")[0]
        tensors += [f"t{n}"] if kind == "new" else [f"v{n}"] if kind == "view" else []
        pools += [f"p{n}"] if kind.startswith("pools") else []
        graphs += [f"g{n}"] if kind == "capture" else []
        lines.append(line)
    settings = random.choice(parts(SETTINGS))
    if settings:
        settings = f'torch_npusim._C.set_allocator_settings("{settings}")'
    start = START.replace("DEVICE", random.choice(DEVICES)).replace("SETTINGS", settings)
    return Program(tuple(lines), start, "check()", END)
