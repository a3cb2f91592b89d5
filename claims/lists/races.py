# SPDX-License-Identifier: BSD-3-Clause
"""Programs with a race, in the pattern of real ones, and what mends each.

A program takes `mended`: False runs it as it was reported, True with what was missing.
Values are right both times, because commands run when they are launched; only the order differs.
"""

import re
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.npusim import Event, Stream, current_stream, default_stream, stream, synchronize

from claims.claim import Brief
from torch_npusim.sim import races
from torch_npusim.testing import allow_sync

DEVICE = "npusim"
N = 4096
Run = Callable[[bool], object]


class Program(NamedTuple):
    """A race: `run` takes `mended`; the report names `missing`; the issue has the pattern."""

    name: str
    run: Run
    missing: str
    link: str


PROGRAMS: list[Program] = []


def program(missing: str, link: str, name: str = "") -> Callable[[Run], Run]:
    """Adds a function to PROGRAMS; `link` is owner/repository#number."""

    def add(run: Run) -> Run:
        PROGRAMS.append(Program(name or run.__name__, run, missing, link))
        return run

    return add


def pinned(value: float = 1.0) -> torch.Tensor:
    """Returns N numbers in pinned memory."""
    return torch.full((N,), value).pin_memory()


def ones(size: int = N, **options: Any) -> torch.Tensor:
    return torch.ones(size, device=DEVICE, **options)


def zeros(size: int = N) -> torch.Tensor:
    return torch.zeros(size, device=DEVICE)


# --- Two steps on two streams: the second does not wait for the first ----------------------------


def two_steps(begins: str, start: Any, first: Any, second: Any) -> Run:
    """`start()` on the main stream, `first(it)` on the one that `begins`, `second(it, result)`."""

    def run(mended: bool) -> object:
        main, side = current_stream(), Stream()
        given = start()
        side.wait_stream(main)
        one, other = (main, side) if begins == "main" else (side, main)
        with stream(one):
            result = first(given)
        if mended:
            other.wait_stream(one)
        with stream(other):
            found = second(given, result)
        synchronize()
        return found

    return run


def nothing() -> None:
    pass


def weight_with_gradient(_: None) -> torch.Tensor:
    weight = ones(requires_grad=True)
    (weight * weight).sum().backward()
    return weight.detach().copy_(weight.grad)


TWO_STEPS = {
    "batch_used_before_its_upload": (
        *("ROCm/pytorch#3194", "side", nothing),
        lambda _: pinned().to(DEVICE, non_blocking=True),
        lambda _, batch: (batch.record_stream(current_stream()), batch * 2),
    ),
    "blocks_stored_before_they_are_computed": (
        *("vllm-project/vllm#46278", "main", pinned),
        lambda host: ones() * 3,
        lambda host, blocks: host.copy_(blocks, non_blocking=True),
    ),
    "gradients_reduced_before_they_are_copied": (
        *("deepspeedai/DeepSpeed#2463", "main", lambda: torch.empty(2 * N, device=DEVICE)),
        lambda bucket: (bucket[:N].copy_(ones()), bucket[N:].copy_(ones())),
        lambda bucket, halves: bucket.div_(2),
    ),
    "optimizer_on_a_side_stream_before_the_backward_is_done": (
        *("meta-pytorch/torchrec#2071", "main", nothing),
        weight_with_gradient,
        lambda _, weight: weight.sub_(weight, alpha=0.1),
    ),
    "gradients_of_a_side_stream_used_at_once": (
        *("pytorch/pytorch#47028", "side", nothing),
        weight_with_gradient,
        lambda _, gradient: gradient.norm(),
    ),
    "shards_cloned_on_one_stream_gathered_on_another": (
        *("pytorch/pytorch#197827", "main", lambda: ones(4 * N)),
        lambda full: [chunk.clone() for chunk in full.chunk(4)],
        lambda full, shards: torch.cat(shards),
    ),
    "next_layer_runs_before_its_weights_are_gathered": (
        *("pytorch/pytorch#70235", "side", lambda: (ones(), torch.empty(2 * N, device=DEVICE))),
        lambda given: (given[1][:N].copy_(given[0]), given[1][N:].copy_(given[0])),
        lambda given, halves: given[1] * 2,
    ),
    "weights_initialised_on_one_stream_cast_on_another": (
        *("NVIDIA/Megatron-LM#6137", "main", nothing),
        lambda _: torch.randn(N, device=DEVICE),
        lambda _, weight: weight.to(torch.bfloat16),
    ),
    "inputs_written_on_the_default_stream_of_a_captured_step": (
        *("meta-pytorch/tritonbench#478", "main", zeros),
        lambda inputs: inputs.fill_(7),
        lambda inputs, _: inputs + 1,
    ),
    # The second step changes what the first still reads or writes.
    "blocks_zeroed_while_they_are_loaded": (
        *("vllm-project/vllm#50696", "main", lambda: torch.empty(N, device=DEVICE)),
        lambda block: block.zero_(),
        lambda block, _: block.copy_(pinned(), non_blocking=True),
    ),
    "gradients_cleared_while_their_norm_is_taken": (
        *("deepspeedai/DeepSpeed#5545", "side", ones),
        lambda gradient: gradient.norm(),
        lambda gradient, norm: (gradient.zero_(), norm),
    ),
}
for name, (link, *parts) in TWO_STEPS.items():
    program("wait_stream", link, name)(two_steps(*parts))


# --- A value is used on a stream that does not wait for it --------------------------------------


@program("wait_stream", "deepspeedai/DeepSpeed#8061")
def bucket_filled_from_two_streams_one_awaited(mended):
    first, second, reduction = Stream(), Stream(), Stream()
    bucket = zeros(2 * N)
    for number, producer in enumerate((first, second)):
        producer.wait_stream(current_stream())
        with stream(producer):
            bucket[number * N : (number + 1) * N].fill_(number)
    reduction.wait_stream(second)
    if mended:
        reduction.wait_stream(first)
    with stream(reduction):
        bucket.div_(2)
    current_stream().wait_stream(reduction)
    current_stream().wait_stream(first)
    return bucket + 0


@program("wait_stream", "deepspeedai/DeepSpeed#7898")
def default_stream_awaited_instead_of_the_current_one(mended):
    compute, reduction = Stream(), Stream()
    with stream(compute):
        gradient = ones() * 2
        reduction.wait_stream(current_stream() if mended else default_stream())
        with stream(reduction):
            reduced = gradient / 2
    gradient.record_stream(reduction)
    return reduced


@program("wait_stream", "pytorch/pytorch#8354")
def waited_for_in_the_wrong_direction(mended):
    side = Stream()
    with stream(side):
        value = ones() + 1
    if mended:
        current_stream().wait_stream(side)
    else:
        side.wait_stream(current_stream())
    return value * 2


@program("wait_stream", "pytorch/pytorch#31930")
def copied_to_another_device_and_used_on_another_stream_there(mended):
    source = torch.ones(N, device="npusim:0")
    there = Stream(device="npusim:1")
    with stream(there):
        moved = source.to("npusim:1", non_blocking=True)
    if mended:
        current_stream("npusim:1").wait_stream(there)
    result = moved + 1
    synchronize("npusim:1")
    synchronize("npusim:0")
    return result


@program("wait_stream", "pytorch/pytorch#54358")
def result_of_a_thread_with_a_stream_of_its_own(mended):
    results = []
    mine = Stream()

    def work():
        with stream(mine):
            results.append(ones() * 5)

    worker = threading.Thread(target=work)
    worker.start()
    worker.join(60)
    if mended:
        current_stream().wait_stream(mine)
    return results[0].sum()


@program("wait_stream", "PaddlePaddle/Paddle#15664")
def branches_joined_but_one(mended):
    first, second = Stream(), Stream()
    start = ones()
    first.wait_stream(current_stream())
    second.wait_stream(current_stream())
    with stream(first):
        left = start + 1
    with stream(second):
        right = start + 2
    current_stream().wait_stream(first)
    if mended:
        current_stream().wait_stream(second)
    return left + right


# --- An event says less than its user believes ---------------------------------------------------


@program("event", "NVIDIA/TensorRT-LLM#15546")
def event_recorded_before_the_work(mended):
    side, done = Stream(), Event()
    with stream(side):
        if not mended:
            done.record()
        value = ones() * 4
        if mended:
            done.record()
    current_stream().wait_event(done)
    return value + 1


@program("event", "sgl-project/sglang#14214")
def event_awaited_before_it_is_recorded(mended):
    side, done = Stream(), Event()
    if not mended:
        current_stream().wait_event(done)
    with stream(side):
        value = ones() * 4
        done.record()
    if mended:
        current_stream().wait_event(done)
    return value + 1


@program("event", "torch/cutorch#222")
def one_event_recorded_on_two_streams(mended):
    first, second = Stream(), Stream()
    shared, own = Event(), Event()
    with stream(first):
        left = ones() * 2
        (own if mended else shared).record()
    with stream(second):
        right = ones() * 3
        shared.record()
    current_stream().wait_event(shared)
    if mended:
        current_stream().wait_event(own)
    return left + right


@program("event", "vllm-project/vllm#39115")
def event_of_the_step_before(mended):
    """Two slots, two events: the second slot is read behind the first slot's event."""
    side, events = Stream(), [Event(), Event()]
    slots = []
    with stream(side):
        for done in events:
            slots.append(ones() * 6)
            done.record()
    current_stream().wait_event(events[1 if mended else 0])
    return slots[1] + 1


@program("event", "pytorch/pytorch#50445")
def event_that_nobody_recorded(mended):
    communication, done = Stream(), Event()
    communication.wait_stream(current_stream())
    with stream(communication):
        reduced = ones() / 2
    if mended:
        communication.record_event(done)
    done.wait(current_stream())
    return reduced + 1


# --- The host reads what a copy has not written yet ----------------------------------------------


def read_early(download: Any, read: Any) -> Run:
    """`read(download())`, mended with a wait between them."""

    def run(mended: bool) -> object:
        host = download()
        if mended:
            synchronize()
        return read(host)

    return run


READ_EARLY = {
    "tokens_read_before_their_download_is_done": (
        "sgl-project/sglang#16493",
        lambda: torch.empty(N, dtype=torch.int64, pin_memory=True).copy_(
            torch.arange(N, device=DEVICE), non_blocking=True
        ),
        lambda host: int(host[-1]),
    ),
    "moved_to_the_host_without_blocking": (
        "pytorch/pytorch#86264",
        lambda: (ones() * 2).to("cpu", non_blocking=True),
        lambda host: (host + 1).sum(),
    ),
    "compared_while_the_download_runs": (
        "pytorch/tutorials#3261",
        lambda: pinned(0.0).copy_(ones(), non_blocking=True),
        lambda host: bool((host == 1).all()),
    ),
    "part_of_a_pinned_tensor_read_at_once": (
        "pytorch/pytorch#137878",
        lambda: pinned(0.0).view(4, N // 4)[1].copy_(ones(N // 4), non_blocking=True),
        lambda row: row.sum(),
    ),
}
for name, (link, *parts) in READ_EARLY.items():
    program("synchronize", link, name)(read_early(*parts))


@program("synchronize", "votca/xtp#391")
def another_stream_synchronised_than_the_copying_one(mended):
    download = Stream()
    value = ones()
    download.wait_stream(current_stream())
    host = pinned(0.0)
    with stream(download):
        host.copy_(value, non_blocking=True)
    (download if mended else current_stream()).synchronize()
    return host.sum()


@program("synchronize", "NVIDIA/Megatron-LM#2288")
def checkpoint_written_while_it_is_downloaded(mended):
    weight = ones()
    staged = pinned(0.0)
    staged.copy_(weight, non_blocking=True)
    copied = current_stream().record_event()
    written = []

    def write():
        if mended:
            copied.synchronize()
        written.append(staged.clone())

    writer = threading.Thread(target=write)
    writer.start()
    writer.join(60)
    return written[0]


@program("synchronize", "pytorch/pytorch#19571")
def download_left_unfinished_by_a_query_that_nobody_reads(mended):
    host = pinned(0.0)
    host.copy_(ones(), non_blocking=True)
    done = current_stream().record_event()
    if mended:
        while not done.query():
            pass
    return host.sum()


# --- The host writes what a copy has not read yet ------------------------------------------------


@program("event", "pytorch/pytorch#126946")
def staging_buffer_refilled(mended):
    staging = pinned(1.0)
    first = staging.to(DEVICE, non_blocking=True)
    uploaded = current_stream().record_event()
    if mended:
        uploaded.synchronize()
    staging.fill_(2.0)
    second = staging.to(DEVICE, non_blocking=True)
    return first + second


@program("event", "NVIDIA/TensorRT-LLM#15546")
def page_table_overwritten_in_place_every_step(mended):
    table = torch.zeros(N, dtype=torch.int64, pin_memory=True)
    on_device = torch.zeros(N, dtype=torch.int64, device=DEVICE)
    uploaded = Event()
    for step in range(3):
        if mended:
            uploaded.synchronize()
        table.copy_(torch.full((N,), step))
        on_device.copy_(table, non_blocking=True)
        uploaded.record()
    return on_device + 0


@program("event", "pytorch/pytorch#127612")
def ring_of_two_buffers_for_three_uploads(mended):
    ring = [pinned(), pinned()]
    events = [Event(), Event()]
    batches = []
    for step in range(3):
        slot = step % 2
        if mended:
            events[slot].synchronize()
        ring[slot].fill_(float(step))
        batches.append(ring[slot].to(DEVICE, non_blocking=True))
        events[slot].record()
    return torch.stack(batches).sum()


@program("record_stream", "pytorch/pytorch#181191")
def result_of_a_side_stream_freed_by_its_reader(mended):
    gather = Stream()
    with stream(gather):
        full = ones() + 1
    current_stream().wait_stream(gather)
    result = full * 2
    if mended:
        full.record_stream(current_stream())
    del full
    with stream(gather):
        again = zeros()
    synchronize()
    return result.sum() + again.sum()


@program("record_stream", "pytorch/pytorch#168061")
def recorded_for_another_stream_than_the_reader(mended):
    reader, other = Stream(), Stream()
    value = ones()
    reader.wait_stream(current_stream())
    with stream(reader):
        result = value + 1
    value.record_stream(reader if mended else other)
    del value
    reused = zeros()
    synchronize()
    return result.sum() + reused.sum()


# --- Memory is freed while another stream uses it ------------------------------------------------


def freed_early(make: Any, use: Any, reuse: Any, drop: Any = lambda value: None) -> Run:
    """`use(make())` on a side stream; what was made is dropped, and its memory `reuse()`d."""

    def run(mended: bool) -> object:
        side = Stream()
        value = make()
        side.wait_stream(current_stream())
        with stream(side):
            result = use(value)
        if mended:
            value.record_stream(side)
        drop(value)
        del value
        reused = reuse()
        synchronize()
        return result.sum() + reused.sum().cpu()

    return run


def to_pinned(value: torch.Tensor) -> torch.Tensor:
    return pinned(0.0).copy_(value, non_blocking=True)


FREED_EARLY = {
    "activation_freed_while_it_is_offloaded": (
        *("meta-pytorch/torchrec#4231", lambda: ones() * 3, to_pinned, zeros),
    ),
    "message_freed_before_it_is_sent": (  # the next one is smaller: a part of the block is reused
        *("pytorch/pytorch#58384", ones, torch.clone, lambda: zeros(N // 2)),
    ),
    "temporary_of_an_expression": (
        *("deepspeedai/DeepSpeed#7965", lambda: ones(dtype=torch.bfloat16).float()),
        *(lambda widened: widened / 2, zeros),
    ),
    "storage_resized_to_nothing_during_a_copy": (
        *("meta-pytorch/torchrec#4231", ones, to_pinned, zeros),
        lambda weight: weight.untyped_storage().resize_(0),
    ),
}
for name, (link, *parts) in FREED_EARLY.items():
    program("record_stream", link, name)(freed_early(*parts))


# --- A value is changed while another stream still reads it --------------------------------------


@program("wait_stream", "deepspeedai/DeepSpeed#5606")
def bucket_refilled_while_it_is_reduced(mended):
    reduction = Stream()
    bucket = zeros()
    sums = []
    for step in range(2):
        if mended:
            current_stream().wait_stream(reduction)
        bucket.fill_(step)
        reduction.wait_stream(current_stream())
        with stream(reduction):
            sums.append(bucket.sum())
    synchronize()
    return sums[0] + sums[1]


@program("wait_stream", "huggingface/pytorch-image-models#2784")
def prefetch_overwrites_the_batch_in_use(mended):
    loader = Stream()
    batch = zeros()
    losses = []
    for step in range(2):
        if mended or step == 0:
            loader.wait_stream(current_stream())
        with stream(loader):
            batch.copy_(pinned(float(step)), non_blocking=True)
        current_stream().wait_stream(loader)
        losses.append((batch * 2).sum())
    return losses[0] + losses[1]


@program("wait_stream", "pytorch/pytorch#196460")
def average_taken_while_the_optimizer_writes(mended):
    averaging = Stream()
    weight = ones()
    average = zeros()
    for _ in range(2):
        weight.mul_(0.9)
        averaging.wait_stream(current_stream())
        with stream(averaging):
            average.lerp_(weight, 0.5)
        if mended:
            current_stream().wait_stream(averaging)
    return average + 0


@program("wait_stream", "pytorch/pytorch#117973")
def two_streams_write_one_accumulator(mended):
    first, second = Stream(), Stream()
    total = zeros()
    first.wait_stream(current_stream())
    second.wait_stream(current_stream())
    with stream(first):
        total.add_(1)
    if mended:
        second.wait_stream(first)
    with stream(second):
        total.add_(2)
    synchronize()
    return total + 0


def _run(program: Program, mended: bool, _: torch.Tensor) -> None:
    with allow_sync(), races.record() as recorded:
        program.run(mended)
        synchronize(0)
        synchronize(1)
    assert not recorded.races, "\n".join(map(str, recorded.races))


CLAIMS = {
    it.name: Brief(re.escape(it.missing), partial(_run, it, False), partial(_run, it, True))
    for it in PROGRAMS
}
