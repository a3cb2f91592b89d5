# SPDX-License-Identifier: BSD-3-Clause
"""Programs with a race, in the pattern of real ones, and what mends each.

A program takes `mended`: False runs it as it was reported, True with what was missing.
Values are right both times, because commands run when they are launched; only the order differs.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.npusim import Event, Stream, current_stream, default_stream, stream, synchronize

DEVICE = "npusim"
N = 4096


@dataclass(frozen=True)
class Program:
    """A program with a race.

    Attributes:
        run: Takes `mended`.
        missing: What the report must say is missing.
        link: An issue or a pull request of this kind. It shows the pattern; the program is ours.
    """

    run: Callable[[bool], object]
    missing: str
    link: str

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.run.__name__


PROGRAMS: list[Program] = []


Run = Callable[[bool], object]


def program(missing: str, link: str) -> Callable[[Run], Run]:
    """Adds a function to PROGRAMS; `link` is owner/repository#number."""
    where, number = link.split("#")

    def add(run: Run) -> Run:
        PROGRAMS.append(Program(run, missing, f"https://github.com/{where}/issues/{number}"))
        return run

    return add


def pinned(value: float = 1.0) -> torch.Tensor:
    """Returns N numbers in pinned memory."""
    return torch.full((N,), value).pin_memory()


# --- A value is used on a stream that does not wait for it --------------------------------------


@program("wait_stream", "ROCm/pytorch#3194")
def batch_used_before_its_upload(mended):
    loader = Stream()
    with stream(loader):
        batch = pinned().to(DEVICE, non_blocking=True)
    if mended:
        current_stream().wait_stream(loader)
    batch.record_stream(current_stream())
    return batch * 2


@program("wait_stream", "vllm-project/vllm#46278")
def blocks_stored_before_they_are_computed(mended):
    store = Stream()
    blocks = torch.ones(N, device=DEVICE) * 3
    host = pinned()
    if mended:
        store.wait_stream(current_stream())
    with stream(store):
        host.copy_(blocks, non_blocking=True)
    store.synchronize()
    return host.clone()


@program("wait_stream", "deepspeedai/DeepSpeed#2463")
def gradients_reduced_before_they_are_copied(mended):
    reduction = Stream()
    bucket = torch.empty(2 * N, device=DEVICE)
    bucket[:N].copy_(torch.ones(N, device=DEVICE))
    bucket[N:].copy_(torch.ones(N, device=DEVICE))
    if mended:
        reduction.wait_stream(current_stream())
    with stream(reduction):
        bucket.div_(2)
    current_stream().wait_stream(reduction)
    return bucket + 0


@program("wait_stream", "deepspeedai/DeepSpeed#8061")
def bucket_filled_from_two_streams_one_awaited(mended):
    first, second, reduction = Stream(), Stream(), Stream()
    bucket = torch.zeros(2 * N, device=DEVICE)
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
        gradient = torch.ones(N, device=DEVICE) * 2
        reduction.wait_stream(current_stream() if mended else default_stream())
        with stream(reduction):
            reduced = gradient / 2
    gradient.record_stream(reduction)
    synchronize()
    return reduced


@program("wait_stream", "meta-pytorch/torchrec#2071")
def optimizer_on_a_side_stream_before_the_backward_is_done(mended):
    updates = Stream()
    weight = torch.ones(N, device=DEVICE, requires_grad=True)
    synchronize()
    (weight * weight).sum().backward()
    if mended:
        updates.wait_stream(current_stream())
    with stream(updates), torch.no_grad():
        weight.sub_(weight.grad, alpha=0.1)
    synchronize()
    return weight.detach()


@program("wait_stream", "pytorch/pytorch#47028")
def gradients_of_a_side_stream_used_at_once(mended):
    side = Stream()
    side.wait_stream(current_stream())
    with stream(side):
        weight = torch.ones(N, device=DEVICE, requires_grad=True)
        (weight * 3).sum().backward()
        gradient = weight.grad
    if mended:
        current_stream().wait_stream(side)
    norm = gradient.norm()
    synchronize()
    return norm


@program("wait_stream", "pytorch/pytorch#197827")
def shards_cloned_on_one_stream_gathered_on_another(mended):
    gather = Stream()
    full = torch.arange(4.0 * N, device=DEVICE)
    shards = [chunk.clone() for chunk in full.chunk(4)]
    if mended:
        gather.wait_stream(current_stream())
    with stream(gather):
        gathered = torch.cat(shards)
    synchronize()
    return gathered


@program("wait_stream", "pytorch/pytorch#70235")
def next_layer_runs_before_its_weights_are_gathered(mended):
    gather = Stream()
    shard = torch.ones(N, device=DEVICE)
    full = torch.empty(2 * N, device=DEVICE)
    gather.wait_stream(current_stream())
    with stream(gather):
        full[:N].copy_(shard)
        full[N:].copy_(shard)
    if mended:
        current_stream().wait_stream(gather)
    activation = full * 2
    synchronize()
    return activation


@program("wait_stream", "NVIDIA/Megatron-LM#6137")
def weights_initialised_on_one_stream_cast_on_another(mended):
    gather = Stream()
    main_weight = torch.randn(N, device=DEVICE)
    if mended:
        gather.wait_stream(current_stream())
    with stream(gather):
        model_weight = main_weight.to(torch.bfloat16)
    synchronize()
    return model_weight


@program("wait_stream", "meta-pytorch/tritonbench#478")
def inputs_written_on_the_default_stream_of_a_captured_step(mended):
    capture = Stream()
    inputs = torch.zeros(N, device=DEVICE)
    capture.wait_stream(current_stream())
    inputs.fill_(7)
    if mended:
        capture.wait_stream(current_stream())
    with stream(capture):
        outputs = inputs + 1
    synchronize()
    return outputs


@program("wait_stream", "pytorch/pytorch#8354")
def waited_for_in_the_wrong_direction(mended):
    side = Stream()
    with stream(side):
        value = torch.ones(N, device=DEVICE) + 1
    if mended:
        current_stream().wait_stream(side)
    else:
        side.wait_stream(current_stream())
    result = value * 2
    synchronize()
    return result


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
            results.append(torch.ones(N, device=DEVICE) * 5)

    worker = threading.Thread(target=work)
    worker.start()
    worker.join(60)
    if mended:
        current_stream().wait_stream(mine)
    total = results[0].sum()
    synchronize()
    return total


@program("wait_stream", "PaddlePaddle/Paddle#15664")
def branches_joined_but_one(mended):
    first, second = Stream(), Stream()
    start = torch.ones(N, device=DEVICE)
    first.wait_stream(current_stream())
    second.wait_stream(current_stream())
    with stream(first):
        left = start + 1
    with stream(second):
        right = start + 2
    current_stream().wait_stream(first)
    if mended:
        current_stream().wait_stream(second)
    joined = left + right
    synchronize()
    return joined


# --- An event says less than its user believes ---------------------------------------------------


@program("event", "NVIDIA/TensorRT-LLM#15546")
def event_recorded_before_the_work(mended):
    side, done = Stream(), Event()
    with stream(side):
        if not mended:
            done.record()
        value = torch.ones(N, device=DEVICE) * 4
        if mended:
            done.record()
    current_stream().wait_event(done)
    result = value + 1
    synchronize()
    return result


@program("event", "sgl-project/sglang#14214")
def event_awaited_before_it_is_recorded(mended):
    side, done = Stream(), Event()
    if not mended:
        current_stream().wait_event(done)
    with stream(side):
        value = torch.ones(N, device=DEVICE) * 4
        done.record()
    if mended:
        current_stream().wait_event(done)
    result = value + 1
    synchronize()
    return result


@program("event", "torch/cutorch#222")
def one_event_recorded_on_two_streams(mended):
    first, second = Stream(), Stream()
    shared, own = Event(), Event()
    with stream(first):
        left = torch.ones(N, device=DEVICE) * 2
        (own if mended else shared).record()
    with stream(second):
        right = torch.ones(N, device=DEVICE) * 3
        shared.record()
    current_stream().wait_event(shared)
    if mended:
        current_stream().wait_event(own)
    result = left + right
    synchronize()
    return result


@program("event", "vllm-project/vllm#39115")
def event_of_the_step_before(mended):
    """Two slots, two events: the second slot is read behind the first slot's event."""
    side, events = Stream(), [Event(), Event()]
    slots = []
    with stream(side):
        for done in events:
            slots.append(torch.ones(N, device=DEVICE) * 6)
            done.record()
    current_stream().wait_event(events[1 if mended else 0])
    result = slots[1] + 1
    synchronize()
    return result


@program("event", "pytorch/pytorch#50445")
def event_that_nobody_recorded(mended):
    communication, done = Stream(), Event()
    communication.wait_stream(current_stream())
    with stream(communication):
        reduced = torch.ones(N, device=DEVICE) / 2
    if mended:
        communication.record_event(done)
    done.wait(current_stream())
    result = reduced + 1
    synchronize()
    return result


# --- The host reads what a copy has not written yet ----------------------------------------------


@program("synchronize", "sgl-project/sglang#16493")
def tokens_read_before_their_download_is_done(mended):
    tokens = torch.arange(N, device=DEVICE)
    host = torch.empty(N, dtype=tokens.dtype, pin_memory=True)
    host.copy_(tokens, non_blocking=True)
    if mended:
        current_stream().synchronize()
    return int(host[-1])


@program("synchronize", "pytorch/pytorch#86264")
def moved_to_the_host_without_blocking(mended):
    host = (torch.ones(N, device=DEVICE) * 2).to("cpu", non_blocking=True)
    if mended:
        synchronize()
    return (host + 1).sum()


@program("synchronize", "pytorch/tutorials#3261")
def compared_while_the_download_runs(mended):
    host = pinned(0.0)
    host.copy_(torch.ones(N, device=DEVICE), non_blocking=True)
    if mended:
        synchronize()
    return bool((host == 1).all())


@program("synchronize", "pytorch/pytorch#137878")
def part_of_a_pinned_tensor_read_at_once(mended):
    rows = pinned(0.0).view(4, N // 4)
    rows[1].copy_(torch.ones(N // 4, device=DEVICE), non_blocking=True)
    if mended:
        synchronize()
    return rows[1].sum()


@program("synchronize", "votca/xtp#391")
def another_stream_synchronised_than_the_copying_one(mended):
    download = Stream()
    value = torch.ones(N, device=DEVICE)
    download.wait_stream(current_stream())
    host = pinned(0.0)
    with stream(download):
        host.copy_(value, non_blocking=True)
    (download if mended else current_stream()).synchronize()
    total = host.sum()
    synchronize()
    return total


@program("synchronize", "NVIDIA/Megatron-LM#2288")
def checkpoint_written_while_it_is_downloaded(mended):
    weight = torch.ones(N, device=DEVICE)
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
    host.copy_(torch.ones(N, device=DEVICE), non_blocking=True)
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


# --- Memory is freed while another stream uses it ------------------------------------------------


@program("record_stream", "meta-pytorch/torchrec#4231")
def activation_freed_while_it_is_offloaded(mended):
    offload = Stream()
    activation = torch.ones(N, device=DEVICE) * 3
    host = pinned(0.0)
    offload.wait_stream(current_stream())
    with stream(offload):
        host.copy_(activation, non_blocking=True)
    if mended:
        activation.record_stream(offload)
    del activation
    reused = torch.zeros(N, device=DEVICE)
    synchronize()
    return host.sum() + reused.sum().cpu()


@program("record_stream", "pytorch/pytorch#58384")
def message_freed_before_it_is_sent(mended):
    sending = Stream()
    message = torch.ones(N, device=DEVICE)
    sending.wait_stream(current_stream())
    with stream(sending):
        wire = message.clone()
    if mended:
        message.record_stream(sending)
    del message
    other = torch.full((N // 2,), 9.0, device=DEVICE)  # smaller: a part of the block is reused
    synchronize()
    return wire.sum() + other.sum()


@program("record_stream", "deepspeedai/DeepSpeed#7965")
def temporary_of_an_expression(mended):
    reduction = Stream()
    gradient = torch.ones(N, device=DEVICE, dtype=torch.bfloat16)
    widened = gradient.float()
    reduction.wait_stream(current_stream())
    with stream(reduction):
        reduced = widened / 2
    if mended:
        widened.record_stream(reduction)
    del widened
    activations = torch.zeros(N, device=DEVICE)
    synchronize()
    return reduced.sum() + activations.sum()


@program("record_stream", "pytorch/pytorch#181191")
def result_of_a_side_stream_freed_by_its_reader(mended):
    gather = Stream()
    with stream(gather):
        full = torch.ones(N, device=DEVICE) + 1
    current_stream().wait_stream(gather)
    result = full * 2
    if mended:
        full.record_stream(current_stream())
    del full
    with stream(gather):
        again = torch.zeros(N, device=DEVICE)
    synchronize()
    return result.sum() + again.sum()


@program("record_stream", "meta-pytorch/torchrec#4231")
def storage_resized_to_nothing_during_a_copy(mended):
    stash = Stream()
    weight = torch.ones(N, device=DEVICE)
    host = pinned(0.0)
    stash.wait_stream(current_stream())
    with stream(stash):
        host.copy_(weight, non_blocking=True)
    if mended:
        weight.record_stream(stash)
    weight.untyped_storage().resize_(0)
    activations = torch.zeros(N, device=DEVICE)
    synchronize()
    return host.sum() + activations.sum().cpu()


@program("record_stream", "pytorch/pytorch#168061")
def recorded_for_another_stream_than_the_reader(mended):
    reader, other = Stream(), Stream()
    value = torch.ones(N, device=DEVICE)
    reader.wait_stream(current_stream())
    with stream(reader):
        result = value + 1
    value.record_stream(reader if mended else other)
    del value
    reused = torch.zeros(N, device=DEVICE)
    synchronize()
    return result.sum() + reused.sum()


# --- A value is changed while another stream still reads it --------------------------------------


@program("wait_stream", "deepspeedai/DeepSpeed#5606")
def bucket_refilled_while_it_is_reduced(mended):
    reduction = Stream()
    bucket = torch.zeros(N, device=DEVICE)
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


@program("wait_stream", "vllm-project/vllm#50696")
def blocks_zeroed_while_they_are_loaded(mended):
    load = Stream()
    block = torch.empty(N, device=DEVICE)
    block.zero_()
    if mended:
        load.wait_stream(current_stream())
    with stream(load):
        block.copy_(pinned(), non_blocking=True)
    current_stream().wait_stream(load)
    return block + 0


@program("wait_stream", "huggingface/pytorch-image-models#2784")
def prefetch_overwrites_the_batch_in_use(mended):
    loader = Stream()
    batch = torch.zeros(N, device=DEVICE)
    losses = []
    for step in range(2):
        if mended or step == 0:
            loader.wait_stream(current_stream())
        with stream(loader):
            batch.copy_(pinned(float(step)), non_blocking=True)
        current_stream().wait_stream(loader)
        losses.append((batch * 2).sum())
    synchronize()
    return losses[0] + losses[1]


@program("wait_stream", "deepspeedai/DeepSpeed#5545")
def gradients_cleared_while_their_norm_is_taken(mended):
    norms = Stream()
    gradient = torch.ones(N, device=DEVICE)
    norms.wait_stream(current_stream())
    with stream(norms):
        norm = gradient.norm()
    if mended:
        current_stream().wait_stream(norms)
    gradient.zero_()
    synchronize()
    return norm


@program("wait_stream", "pytorch/pytorch#196460")
def average_taken_while_the_optimizer_writes(mended):
    averaging = Stream()
    weight = torch.ones(N, device=DEVICE)
    average = torch.zeros(N, device=DEVICE)
    for _ in range(2):
        weight.mul_(0.9)
        averaging.wait_stream(current_stream())
        with stream(averaging):
            average.lerp_(weight, 0.5)
        if mended:
            current_stream().wait_stream(averaging)
    synchronize()
    return average + 0


@program("wait_stream", "pytorch/pytorch#117973")
def two_streams_write_one_accumulator(mended):
    first, second = Stream(), Stream()
    total = torch.zeros(N, device=DEVICE)
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
