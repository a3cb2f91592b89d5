# SPDX-License-Identifier: BSD-3-Clause
"""The first line of a verdict: one cause of a closed list, with its evidence."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from npusim_lab import Choice, TraceBuilder, explain
from npusim_lab.causes import CAUSES, Found, cause_of
from npusim_lab.command import main
from npusim_lab.snapshot_export import to_snapshot
from npusim_lab.snapshot_import import from_snapshot
from npusim_lab.trace import Op, Trace

MIB = 1 << 20


def fraction() -> Trace:
    out = TraceBuilder()
    out.add(Op.MEMORY_FRACTION, bytes=1 << 31)  # a half
    out.malloc(40 * MIB)
    out.malloc(40 * MIB)
    return out.build()


def loading() -> Trace:
    out = TraceBuilder()
    for _ in range(4):
        out.malloc(30 * MIB)
    return out.build()


def step() -> Trace:
    out = TraceBuilder()
    forward = out.stack((("job.py", 3, "forward"),))
    for _ in range(3):
        held = [out.malloc(30 * MIB, stack=forward) for _ in range(3)]
        for block in held:
            out.add(Op.FREE, block)
    for _ in range(4):
        out.malloc(30 * MIB, stack=forward)
    return out.build()


def leaks(out: TraceBuilder) -> TraceBuilder:
    line = out.stack((("job.py", 7, "keep"),))
    for _ in range(60):
        out.malloc(2 * MIB, stack=line)
        out.add(Op.FREE, out.malloc(4 * MIB))
    return out


def leak() -> Trace:
    return leaks(TraceBuilder()).build()


def pool() -> Trace:
    out = TraceBuilder()
    out.add(Op.CREATE_POOL, pool=1)
    block = out.malloc(50 * MIB, pool=1)
    out.add(Op.FREE, block)
    out.malloc(60 * MIB)
    return out.build()


def pool_and_pieces() -> Trace:
    out = TraceBuilder()
    out.add(Op.CREATE_POOL, pool=1)
    kept = [out.malloc(10 * MIB) for _ in range(6)]  # each a segment
    out.add(Op.FREE, out.malloc(30 * MIB, pool=1))
    for block in kept[::2]:
        out.add(Op.FREE, block)
        out.malloc(7 * MIB)
    out.malloc(14 * MIB)
    return out.build()


def images() -> Trace:
    out = TraceBuilder()
    line = out.stack((("data.py", 5, "cache_images"),))
    for _ in range(40):
        out.malloc(7 * MIB, stack=line)  # two in each segment of 20 MiB
    return out.build()


def refinement() -> Trace:
    """One pass: its first lines are not called again while a loop in it holds more and more."""
    out = TraceBuilder()
    caller = ("job.py", 30, "main")
    first, loop = (out.stack((("job.py", line, "forward"), caller)) for line in (5, 9))
    for _ in range(2):
        out.malloc(10 * MIB, stack=first)
    for _ in range(20):
        out.malloc(6 * MIB, stack=loop)
        out.add(Op.FREE, out.malloc(2 * MIB, stack=loop))
    return out.build()


def climbing() -> Trace:
    """Small temporaries come and go, and what is in use never falls by much: the first step."""
    out = TraceBuilder()
    loop = out.stack((("job.py", 9, "forward"), ("job.py", 30, "main")))
    out.malloc(7 * MIB, stack=out.stack((("job.py", 5, "forward"), ("job.py", 30, "main"))))
    for _ in range(20):
        out.malloc(7 * MIB, stack=loop)  # two in each segment of 20 MiB
        out.add(Op.FREE, out.malloc(3 * MIB, stack=loop))
    return out.build()


def own_pools() -> Trace:
    """A request of one private pool, while the free memory is in others."""
    out = TraceBuilder()
    for pool in (1, 2, 3):
        out.add(Op.CREATE_POOL, pool=pool)
        for block in [out.malloc(15 * MIB, pool=pool) for _ in range(2)]:
            if pool < 3:
                out.add(Op.FREE, block)
    out.malloc(15 * MIB, pool=3)
    return out.build()


def kept_for_later() -> Trace:
    """A line kept more and more, and a later phase asks for too much beside it."""
    out = TraceBuilder()
    line = out.stack((("job.py", 7, "keep"),))
    for _ in range(25):
        out.malloc(2 * MIB, stack=line)
        out.add(Op.FREE, out.malloc(4 * MIB))
    for size in (MIB, 60 * MIB):
        out.malloc(size, stack=out.stack((("job.py", 20, "validate"),)))
    return out.build()


def long_batch() -> Trace:
    """A step that takes half as much again as any before, and is not over."""
    out = TraceBuilder()
    forward = out.stack((("job.py", 3, "forward"), ("job.py", 9, "main")))
    for _ in range(4):
        for block in [out.malloc(8 * MIB, stack=forward) for _ in range(6)]:
            out.add(Op.FREE, block)
    for _ in range(14):
        out.malloc(8 * MIB, stack=forward)  # two in each segment of 20 MiB
    return out.build()


def two_lines() -> Trace:
    """Two lines of a stream keep as much each, and none holds more than half."""
    out = TraceBuilder()
    lines = [out.stack((("stream.py", line, "update"),)) for line in (4, 5)]
    for _ in range(60):
        for line in lines:
            out.malloc(2 * MIB, stack=line)
        out.add(Op.FREE, out.malloc(4 * MIB, stack=lines[0]))
    return out.build()


def holes() -> Trace:
    out = TraceBuilder()
    kept = [out.malloc(9 * MIB) for _ in range(10)]  # two in each segment of 20 MiB
    for block in kept[::2]:
        out.add(Op.FREE, block)
    out.malloc(40 * MIB)
    return out.build()


def caches() -> Trace:
    out = TraceBuilder()
    cache = out.stack((("server.py", 3, "cache"),))
    kept = [out.malloc(9 * MIB, stack=cache) for _ in range(8)]
    for block in kept[::2]:
        out.add(Op.FREE, block)
    out.malloc(40 * MIB, stack=cache)
    return out.build()


def few_frames() -> Trace:
    """Captured graphs keep a little more each, and their pools hold nearly all of the device."""
    out = TraceBuilder()
    line = out.stack((("runner.py", 12, "capture"),))
    for pool in range(1, 10):
        out.add(Op.CREATE_POOL, pool=pool)
        out.malloc(MIB, pool=pool, stack=line)
        out.add(Op.FREE, out.malloc(9 * MIB, pool=pool, stack=line))
    out.malloc(12 * MIB, stack=line)
    return out.build()


def fuller_before() -> Trace:
    """As much was in use just before, and had its place."""
    out = TraceBuilder()
    cache = out.stack((("server.py", 3, "cache"),))
    kept = [out.malloc(9 * MIB, stack=cache) for _ in range(10)]
    for block in kept[:4:2]:
        out.add(Op.FREE, block)
    out.malloc(15 * MIB, stack=cache)
    return out.build()


def streamed() -> Trace:
    """Layers come and go one by one, and then all of them come."""
    out = TraceBuilder()
    line = out.stack((("offload.py", 10, "load"),))
    for _ in range(12):
        out.add(Op.FREE, out.malloc(10 * MIB, stack=line))
    for _ in range(12):
        out.malloc(10 * MIB, stack=line)
    return out.build()


def graphs_of_passes() -> Trace:
    """Passes that nobody goes back keep what they hold, in five lines as much each."""
    out = TraceBuilder()
    caller = ("job.py", 30, "main")
    lines = [out.stack((("job.py", line, "forward"), caller)) for line in range(5)]
    for _ in range(12):
        for line in lines:
            out.malloc(2 * MIB, stack=line)
        out.add(Op.FREE, out.malloc(2 * MIB, stack=lines[0]))
    return out.build()


def two_streams() -> Trace:
    out = TraceBuilder()
    kept = [out.malloc(9 * MIB, stream=1) for _ in range(8)]  # two in each segment of 20 MiB
    for block in kept[::2]:
        out.add(Op.FREE, block)
    out.malloc(30 * MIB)
    return out.build()


def beside_raw_weights() -> Trace:
    """A cache does not fit into the holes that weights left, and nearly all else is taken."""
    out = TraceBuilder()
    out.add(Op.FREE, out.malloc(30 * MIB))
    raw = [out.malloc(2 * MIB) for _ in range(20)]
    for block in raw[::2]:
        out.add(Op.FREE, block)
    for _ in range(20):
        out.malloc(3 * MIB, stack=out.stack((("server.py", 3, "pages"),)))
    return out.build()


def weights_of(**more: Any) -> Found:
    return Found(kinds={"parameters": 80}, asked_kind="parameters", freed=100, **more)


@pytest.mark.parametrize(
    ("made", "cause", "evidence"),
    [
        (fraction, "a limit that the user set", "Torch may have 50 MiB of 100 MiB"),
        (loading, "too large, however it is placed", "90 MiB are in use, and 0 bytes were freed"),
        (
            step,
            "the peak of one step",
            "30 MiB are asked for beside 90 MiB in use: 90 MiB of activations",
        ),
        (leak, "growth", "Memory of keep (job.py:7) grows with its "),
        (pool, "a cache that another pool holds", "50 MiB are free in private pools, and 50 MiB"),
        (pool_and_pieces, "a cache that another pool holds", "30 MiB are free in private pools"),
        (own_pools, "a cache that another pool holds", "64 MiB are free in private pools, and 4"),
        (few_frames, "a cache that another pool holds", "84 MiB are free in private pools, and 11"),
        (kept_for_later, "the peak of one step", "60 MiB are asked for beside 51 MiB in use"),
        (long_batch, "the peak of one step", "8 MiB are asked for beside 80 MiB in use"),
        (two_lines, "growth", "Memory of update (stream.py:"),
        (streamed, "too large, however it is placed", "100 MiB are in use, and 0 bytes were freed"),
        (graphs_of_passes, "growth", "Memory of forward (job.py:"),
        (
            two_streams,
            "a cache that another pool holds",
            "44 MiB are free on other streams, and 20",
        ),
        (beside_raw_weights, "fragmentation", "34 MiB are free together"),
        (images, "too large, however it is placed", "70 MiB are in use, and 0 bytes were freed"),
        (refinement, "the peak of one step", "6 MiB are asked for beside "),
        (climbing, "the peak of one step", "7 MiB are asked for beside 70 MiB in use"),
        (holes, "fragmentation", "55 MiB are free together, and the largest piece is "),
        (fuller_before, "fragmentation", "are free together, and the largest piece is "),
        (caches, "fragmentation", "64 MiB are free together, and the largest piece is "),
    ],
)
def test_the_first_line_names_the_cause(made, cause: str, evidence: str) -> None:
    answer = explain(made(), Choice("cuda-2.13"), 100 * MIB, quick=True)
    assert answer["cause"] == cause
    assert cause in CAUSES
    first = answer["sentences"][0]
    assert first.startswith(f"Cause: {cause}. ")
    assert evidence in first


@pytest.mark.parametrize(
    ("live", "found", "cause"),
    [
        # As much was in use before: holes are the cause where a setting joins them.
        (80, Found(freed=100, most_before=90, mends=True), "fragmentation"),
        (80, Found(freed=100, most_before=90, mends=False), "the peak of one step"),
        (30, Found(freed=100, most_before=90, mends=False), "fragmentation"),
        (80, Found(freed=100, most_before=40, mends=True), "the peak of one step"),
        # One piece would serve only just: the next request fails.
        (89, Found(freed=100, most_before=95, mends=True), "the peak of one step"),
        # Weights that move: more of them is loaded than was freed, or they are converted.
        (
            80,
            weights_of(freed_alike=70, most_before=90, mends=True),
            "too large, however it is placed",
        ),
        (80, weights_of(freed_alike=90, most_before=40, mends=True), "fragmentation"),
        # Contexts of other ranks are a small part, and the request would fit beside none.
        (75, Found(freed=100, most_before=40, outside=8), "memory held outside of torch"),
        (75, Found(freed=100, most_before=40, outside=5), "the peak of one step"),
    ],
)
def test_the_numbers_decide_the_cause(live: int, found: Found, cause: str) -> None:
    """Ten of 100 MiB are asked for, and two are left on the device."""
    oom = {
        "requested_bytes": 10, "allocated_bytes": live, "pending_bytes": 0, "total_bytes": 100,
        "cached_bytes": 98 - live, "private_cached_bytes": 0, "largest_free_bytes": 5,
        "free_bytes": 2, "allowed_bytes": None,
    }  # fmt: skip
    assert cause_of(oom, found, str)[0] == cause


def snapshot(device: int = 0, device_free: int = 20 * MIB) -> dict[str, Any]:
    """Two blocks of 40 MiB of a library; a third is refused with so much free on the device."""
    frames = [
        {"filename": "torch/csrc/unwind.cpp", "line": 1, "name": "torch::unwind::unwind()"},
        {"filename": "/v/site-packages/vllm/v1/runner.py", "line": 5, "name": "load"},
        {"filename": "job.py", "line": 9, "name": "main"},
    ]
    history: list[dict[str, Any]] = []
    for place in (40 * MIB, 80 * MIB):
        for action in ("segment_alloc", "alloc"):
            one = {"action": action, "addr": place, "size": 40 * MIB, "frames": frames}
            history.append({**one, "stream": 0, "time_us": 1})
    history.append(
        {"action": "oom", "device_free": device_free, "size": 40 * MIB, "stream": 0,
         "frames": frames, "time_us": 1}
    )  # fmt: skip
    blocks = [{"state": "active_allocated", "size": 40 * MIB, "requested_size": 40 * MIB}]
    segments = [
        {"device": device, "address": place, "total_size": 40 * MIB, "stream": 0, "blocks": blocks}
        for place in (40 * MIB, 80 * MIB)
    ]
    return {"segments": segments, "device_traces": [[]] * device + [history]}


def test_a_request_that_fails_beside_free_memory_met_a_limit() -> None:
    trace = from_snapshot(snapshot(device_free=60 * MIB))
    answer = explain(trace, Choice("cuda-2.13"), quick=True)
    assert answer["cause"] == "a limit that the user set"
    assert "80 MiB of 140 MiB" in answer["sentences"][0]
    assert "set_per_process_memory_fraction" in answer["sentences"][1]
    assert trace.info["inferred"][0].startswith(f"a limit of {80 * MIB} bytes or a little more")
    full = explain(from_snapshot(snapshot()), Choice("cuda-2.13"), quick=True)
    assert full["cause"] == "too large, however it is placed"


def test_events_have_the_numbers_of_the_file() -> None:
    trace = from_snapshot(snapshot(device_free=60 * MIB))
    answer = explain(trace, Choice("cuda-2.13"), quick=True)
    assert (answer["entry"], answer["event"]) == (4, 5)
    assert "Event 4 of the file (5 here), by load " in answer["verdict"]


def test_a_holder_is_the_librarys_function_and_the_users_line() -> None:
    trace = from_snapshot(snapshot())
    told = "80 MiB by load (vllm/v1/runner.py:5), called by main (job.py:9) ("
    assert told in explain(trace, quick=True)["verdict"]
    for row in explain(trace, show="all", quick=True)["holders"]:
        assert row["stack"].startswith("load ")


def test_of_several_devices_the_one_that_failed_is_explained(tmp_path, capsys) -> None:
    path = tmp_path / "both.pickle"
    failed, fine = snapshot(1), snapshot()
    for name in ("segments", "device_traces"):
        failed[name][:0] = fine[name]
    del failed["device_traces"][0][-1], failed["device_traces"][1]
    path.write_bytes(pickle.dumps(failed))
    assert main(["explain", str(path)]) == 0
    said = capsys.readouterr().out
    assert "of devices [0, 1] only 1 ran out of memory" in said
    assert main(["match", str(path), "--device", "1"]) == 0
    assert "of 2 mallocs" in capsys.readouterr().out


def test_blocks_of_one_phase_and_caches_do_not_grow() -> None:
    """A leak of the same sizes in the same order grows: something is given back meanwhile."""
    for function, returns, grows in [
        ("keep", True, True),
        ("load", False, False),
        ("allocate_kv_cache", True, False),
        ("_apply", True, False),
    ]:
        out = TraceBuilder()
        line = out.stack((("job.py", 7, function),))
        for _ in range(40):
            out.malloc(2 * MIB, stack=line)
            if returns:
                out.add(Op.FREE, out.malloc(MIB))
        holder = explain(out.build(), Choice("cuda-2.13"), quick=True)["holders"][0]
        assert (holder["growth"] is not None) == grows, function


@pytest.mark.parametrize("kept", [False, True])
def test_a_cache_in_use_becomes_larger_and_one_that_is_kept_grows(kept: bool) -> None:
    out = TraceBuilder()
    cache = out.stack((("transformers/cache_utils.py", 9, "update"),))
    work = out.stack((("model.py", 4, "forward"),))
    before = []
    for step in range(40):
        out.add(Op.FREE, out.malloc(MIB, stack=work))
        before.append(out.malloc((step + 1) * MIB, stack=cache))
        if len(before) > 1 and not kept:
            out.add(Op.FREE, before[-2])
    holder = explain(out.build(), Choice("cuda-2.13"), quick=True)["holders"][0]
    assert (holder["growth"] is not None) == kept


def test_the_first_call_of_a_line_counts_as_the_others() -> None:
    """Its frames of C++ differ: what is set up once is below them."""
    out = TraceBuilder()
    lines = [(("setup.cpp", 0, "once"), ("job.py", 3, "forward")), (("job.py", 3, "forward"),)]
    for step in range(40):
        out.malloc(2 * MIB, stack=out.stack(lines[step > 0]))
        out.add(Op.FREE, out.malloc(4 * MIB))
    holder = explain(out.build(), Choice("cuda-2.13"), quick=True)["holders"][0]
    assert holder["growth"]["requests"] == 40


def test_a_larger_device_keeps_the_recorded_failure() -> None:
    """It failed when 100 MiB were all that torch could have: the rest was held by others."""
    snapshot = to_snapshot(step(), Choice("cuda-2.13"), 100 * MIB)
    alone, beside = (from_snapshot(snapshot, capacity_bytes=size) for size in (None, 140 * MIB))
    assert explain(alone, quick=True)["cause"] == "the peak of one step"
    answer = explain(beside, quick=True)
    assert answer["cause"] == "memory held outside of torch"
    told = (
        "The recorded run failed when torch could have 100 MiB of 140 MiB; 40 MiB are held outside"
    )
    assert told in answer["verdict"]
    assert answer["oom"]["event"] == explain(alone, quick=True)["oom"]["event"]
    grown = to_snapshot(leak(), Choice("cuda-2.13"), 100 * MIB)
    assert explain(from_snapshot(grown, capacity_bytes=140 * MIB), quick=True)["cause"] == "growth"


def test_failures_that_the_program_went_on_from_are_not_explained() -> None:
    """It looked for the largest batch, and a leak ended it much later; then it cleaned up."""
    out = TraceBuilder()
    for batch in (200, 150):
        out.malloc(batch * MIB)
        out.add(Op.FREE, out.malloc(60 * MIB))
    leaks(out)
    out.malloc(70 * MIB)
    snapshot = to_snapshot(out.build(), Choice("cuda-2.13"), 100 * MIB)
    trace = from_snapshot(snapshot)
    answer = explain(trace, quick=True)
    assert answer["cause"] == "growth"
    assert "After 2 failures before this one the program went on." in answer["verdict"]
    history = enumerate(snapshot["device_traces"][0])
    assert answer["entry"] == [n for n, entry in history if entry["action"] == "oom"][2]
    assert explain(trace.with_attempts(), quick=True)["verdict"] == answer["verdict"]


def test_a_program_went_on_that_fails_where_it_was_served_before() -> None:
    """A server refuses two requests, and then one of a size that it had served."""
    out = TraceBuilder()
    serve = out.stack((("server.py", 3, "execute"),))
    out.add(Op.FREE, out.malloc(20 * MIB, stack=serve))
    for _ in range(2):
        out.malloc(45 * MIB, stack=out.stack((("server.py", 2, "prepare"),)))
        out.malloc(120 * MIB, stack=serve)
    out.malloc(MIB)
    out.malloc(20 * MIB, stack=serve)
    snapshot = to_snapshot(out.build(), Choice("cuda-2.13"), 100 * MIB)
    answer = explain(from_snapshot(snapshot), quick=True)
    assert "asks for 20 MiB" in answer["verdict"]
    assert "After 2 failures before this one the program went on." in answer["verdict"]


def test_what_caught_failures_left_in_use_grows() -> None:
    """Errors that a server keeps hold the tensors of their requests."""
    out = TraceBuilder()
    line = out.stack((("server.py", 2, "prepare"),))
    out.add(Op.FREE, out.malloc(20 * MIB, stack=line))
    for _ in range(2):
        out.malloc(40 * MIB, stack=line)
        out.malloc(120 * MIB, stack=out.stack((("server.py", 3, "execute"),)))
    out.malloc(MIB)
    out.malloc(20 * MIB, stack=line)
    snapshot = to_snapshot(out.build(), Choice("cuda-2.13"), 100 * MIB)
    answer = explain(from_snapshot(snapshot), quick=True)
    assert answer["cause"] == "growth"
    assert "2 failures" in answer["verdict"]
    assert "left 80 MiB in use" in answer["sentences"][0]
    assert "traceback of a caught failure" in answer["advice"]


def test_the_advice_on_a_peak_names_the_kinds_that_hold_most_first() -> None:
    for cache, first in ((70, "KV cache: "), (10, "Weights: ")):
        out = TraceBuilder()
        out.malloc(cache * MIB, stack=out.stack((("job.py", 2, "allocate_kv_cache"),)))
        out.malloc((80 - cache) * MIB, stack=out.stack((("job.py", 3, "load_weights"),)))
        forward = out.stack((("job.py", 4, "forward"),))
        for size in (10, 25):
            out.add(Op.FREE, out.malloc(size * MIB, stack=forward))
        answer = explain(out.build(), Choice("cuda-2.13"), 100 * MIB, quick=True)
        assert answer["cause"] == "the peak of one step"
        assert answer["advice"].startswith(first)
        assert "Activations: " in answer["advice"]


def old_gradients() -> Trace:
    """Threads of autograd have no frames: their blocks have the sizes of the parameters."""
    out = TraceBuilder()
    weights = out.stack((("torch/nn/modules/linear.py", 9, "__init__"),))
    for stack in (weights, 0):
        for size in (10, 12, 14):
            out.malloc(size * MIB, stack=stack)
    out.malloc(40 * MIB, stack=out.stack((("rollout.py", 3, "generate"),)))
    return out.build()


def old_outputs() -> Trace:
    """The output of a pass stays when its backward pass is over."""
    out = TraceBuilder()
    first, last = (out.stack((("model.py", line, "forward"),)) for line in (3, 4))
    for _ in range(3):
        held = [out.malloc(10 * MIB, stack=first) for _ in range(6)]
        out.malloc(15 * MIB, stack=last)
        out.add(Op.FREE, out.malloc(2 * MIB))
        for block in held:
            out.add(Op.FREE, block)
    return out.build()


def one_request() -> Trace:
    out = TraceBuilder()
    line = out.stack((("masks.py", 3, "upscale"),))
    out.add(Op.FREE, out.malloc(40 * MIB, stack=line))
    for size in (60, 50):
        out.malloc(size * MIB, stack=line)
    return out.build()


def scores() -> Trace:
    out = TraceBuilder()
    out.malloc(120 * MIB, stack=out.stack((("model.py", 3, "attention"),)))
    return out.build()


@pytest.mark.parametrize(
    ("made", "first"),
    [
        (old_gradients, "Gradients: optimizer.zero_grad() "),
        (old_outputs, "Free what forward (model.py:4) keeps of an earlier pass "),
        (one_request, "Go through what is asked for in chunks"),
        (scores, "Attention: flash attention "),
        (loading, "Load in a smaller dtype or quantized"),
        (streamed, "Unload first what has run; load in a smaller dtype"),
        (two_streams, "Use one stream"),
    ],
)
def test_the_remedy_that_costs_least_is_named_first(made, first: str) -> None:
    answer = explain(made(), Choice("cuda-2.13"), 100 * MIB, quick=True)
    assert answer["advice"].startswith(first), answer["sentences"][:2]


@pytest.mark.parametrize(
    ("frames", "others", "first"),
    [
        ((), [("torch/optim/adam.py", 1, "step")], "Activations: checkpoint them, or "),
        ((("torch/utils/checkpoint.py", 1, "unpack_hook"),), [], "Checkpoint shorter parts"),
        ((), [("torch/utils/checkpoint.py", 1, "checkpoint")], "Activations: take a smaller "),
        ((), [], "Activations: take a smaller batch"),
    ],
)
def test_checkpoints_are_advised_to_those_who_train(frames, others, first: str) -> None:
    out = TraceBuilder()
    for frame in others:
        out.add(Op.FREE, out.malloc(MIB, stack=out.stack((frame,))))
    out.add(Op.FREE, out.malloc(50 * MIB))
    forward = out.stack((("model.py", 3, "forward"), *frames))
    for _ in range(4):
        out.malloc(30 * MIB, stack=forward)
    answer = explain(out.build(), Choice("cuda-2.13"), 100 * MIB, quick=True)
    assert answer["advice"].startswith(first), answer["sentences"][:2]


def test_graphs_are_to_be_captured_from_the_largest_down() -> None:
    out = TraceBuilder()
    out.add(Op.CREATE_POOL, pool=1)
    for size in (15, 25, 35, 45):
        out.add(Op.FREE, out.malloc(size * MIB, pool=1))
    answer = explain(out.build(), Choice("cuda-2.13"), 100 * MIB, quick=True)
    assert answer["cause"] == "fragmentation"
    assert answer["advice"].startswith("Capture the largest sizes first")
