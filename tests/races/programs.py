# SPDX-License-Identifier: BSD-3-Clause
"""Programs that overlap work, written with a `sync(...)` around every order that they ask for.

Each is correct as it stands. A test runs it again with one order left out at a time: then the
detector must report a race, unless the program needs that order for nothing.
"""

from collections.abc import Callable
from typing import Any

import torch

Sync = Callable[[str, Callable[[], Any]], None]
NPU = "npusim"
N = 64


def _main() -> torch.Stream:
    return torch.accelerator.current_stream()


def fork_and_join(sync: Sync) -> None:
    """A side stream computes while the main one goes on, and both meet again."""
    side = torch.Stream(NPU)
    x = torch.ones(N, device=NPU)
    sync("fork", lambda: side.wait_stream(_main()))
    with side:
        y = x * 2
    z = x + 1
    sync("join", lambda: _main().wait_stream(side))
    (y + z).sum().item()


def prefetch(sync: Sync) -> None:
    """Batches are uploaded on a side stream and used on the main one."""
    side = torch.Stream(NPU)
    total = torch.zeros(N, device=NPU)
    host = torch.ones(N, pin_memory=True)
    for _ in range(3):
        with side:
            batch = host.to(NPU, non_blocking=True)
        sync("uploaded", lambda: _main().wait_stream(side))
        sync("record", lambda batch=batch: batch.record_stream(_main()))
        total += batch
        del batch
    total.sum().item()


def result_of_a_side_stream(sync: Sync) -> None:
    """A tensor of the main stream is read on another one and freed at once."""
    side = torch.Stream(NPU)
    x = torch.ones(N, device=NPU)
    sync("fork", lambda: side.wait_stream(_main()))
    with side:
        y = x + 1
    sync("record", lambda x=x: x.record_stream(side))
    del x
    torch.full((N,), 3.0, device=NPU)
    sync("join", lambda: _main().wait_stream(side))
    y.sum().item()


def double_buffer(sync: Sync) -> None:
    """Two device buffers are filled in turn while the other is used."""
    side = torch.Stream(NPU)
    buffers = [torch.zeros(N, device=NPU) for _ in range(2)]
    sync("buffers", lambda: side.wait_stream(_main()))
    ready = [torch.Event(NPU) for _ in range(2)]
    used = [torch.Event(NPU) for _ in range(2)]
    for step in range(4):
        slot = step % 2
        if step >= 2:
            sync("free", lambda slot=slot: side.wait_event(used[slot]))
        with side:
            buffers[slot].fill_(float(step))
            ready[slot].record()
        sync("ready", lambda slot=slot: _main().wait_event(ready[slot]))
        buffers[slot].sum()
        used[slot].record()


def staging_ring(sync: Sync) -> None:
    """Two pinned buffers are refilled once their upload is over."""
    staging = [torch.zeros(N, pin_memory=True) for _ in range(2)]
    done = [torch.Event(NPU) for _ in range(2)]
    device = torch.zeros(N, device=NPU)
    for step in range(4):
        slot = step % 2
        if step >= 2:
            sync("uploaded", done[slot].synchronize)
        staging[slot].fill_(float(step))
        device.copy_(staging[slot], non_blocking=True)
        done[slot].record()


def losses_read_late(sync: Sync) -> None:
    """A loss is copied to pinned memory and read after an event."""
    landed = torch.zeros(1, pin_memory=True)
    loss = torch.ones(1, device=NPU)
    landed.copy_(loss, non_blocking=True)
    event = torch.Event(NPU)
    event.record()
    sync("landed", event.synchronize)
    landed.item()


def download_and_wait(sync: Sync) -> None:
    """The simplest download."""
    landed = torch.ones(N, device=NPU).to("cpu", non_blocking=True)
    pinned = torch.empty(N, pin_memory=True)
    pinned.copy_(torch.ones(N, device=NPU), non_blocking=True)
    sync("wait", torch.npusim.synchronize)
    assert landed.sum() + pinned.sum() == 2 * N


def buckets(sync: Sync) -> None:
    """Gradients are reduced in buckets on a stream of their own."""
    comm = torch.Stream(NPU)
    gradients = [torch.ones(N, device=NPU) for _ in range(3)]
    for number, gradient in enumerate(gradients):
        gradient.mul_(2.0)
        sync(f"bucket {number}", lambda: comm.wait_stream(_main()))
        with comm:
            gradient.div_(2.0)
    sync("all reduced", lambda: _main().wait_stream(comm))
    for gradient in gradients:
        gradient.add_(1.0)


def two_devices(sync: Sync) -> None:
    """A copy between devices orders itself; what another stream does there does not."""
    side = torch.Stream("npusim:1")
    x = torch.ones(N, device="npusim:0")
    y = x.to("npusim:1")
    sync("on the other side", lambda: side.wait_stream(torch.npusim.current_stream(1)))
    with side:
        z = y + 1
    sync("back", lambda: torch.npusim.current_stream(1).wait_stream(side))
    (y + z).sum().item()


def write_after_read(sync: Sync) -> None:
    """A tensor may change only when its reader is done."""
    side = torch.Stream(NPU)
    x = torch.ones(N, device=NPU)
    sync("fork", lambda: side.wait_stream(_main()))
    with side:
        y = x.clone()
    sync("read", lambda: _main().wait_stream(side))
    x.zero_()
    y.sum()


def chain_of_events(sync: Sync) -> None:
    """Three streams, each waits for the one before."""
    streams = [torch.Stream(NPU) for _ in range(3)]
    x = torch.zeros(N, device=NPU)
    event = torch.Event(NPU)
    event.record()
    for stream in streams:
        sync(f"stream {streams.index(stream)}", lambda e=event, s=stream: s.wait_event(e))
        with stream:
            x.add_(1.0)
            event = torch.Event(NPU)
            event.record()
    sync("end", event.synchronize)
    assert x.sum().item() == 3 * N


def offload(sync: Sync) -> None:
    """An activation goes to pinned memory on a side stream and comes back for its backward."""
    side = torch.Stream(NPU)
    activation = torch.ones(N, device=NPU)
    host = torch.empty(N, pin_memory=True)
    sync("computed", lambda: side.wait_stream(_main()))
    with side:
        host.copy_(activation, non_blocking=True)
    sync("record", lambda x=activation: x.record_stream(side))
    del activation
    torch.zeros(N, device=NPU)
    with side:
        back = host.to(NPU, non_blocking=True)
    sync("back", lambda: _main().wait_stream(side))
    back.sum().item()


def average_of_weights(sync: Sync) -> None:
    """An average of the weights is updated on a side stream while they rest."""
    side = torch.Stream(NPU)
    weight = torch.ones(N, device=NPU)
    average = weight.clone()
    for _ in range(2):
        sync("trained", lambda: side.wait_stream(_main()))
        with side:
            average.lerp_(weight, 0.1)
        sync("averaged", lambda: _main().wait_stream(side))
        weight.sub_(0.1)
    average.sum()


def backward_on_a_side_stream(sync: Sync) -> None:
    """Autograd runs each node on the stream of its forward, and orders the streams itself."""
    side = torch.Stream(NPU)
    weight = torch.ones(N, device=NPU, requires_grad=True)
    sync("fork", lambda: side.wait_stream(_main()))
    with side:
        loss = (weight * 2).sum()
    sync("join", lambda: _main().wait_stream(side))
    (loss + weight.sum()).backward()
    weight.grad.sum().item()


def polling(sync: Sync) -> None:
    """The host asks until the download is over."""
    landed = torch.empty(N, pin_memory=True)
    landed.copy_(torch.ones(N, device=NPU), non_blocking=True)
    event = torch.Event(NPU)
    event.record()

    def poll() -> None:
        while not event.query():
            pass

    sync("polled", poll)
    landed.sum()


PROGRAMS = [
    fork_and_join,
    prefetch,
    result_of_a_side_stream,
    double_buffer,
    staging_ring,
    losses_read_late,
    download_and_wait,
    buckets,
    two_devices,
    write_after_read,
    chain_of_events,
    offload,
    average_of_weights,
    backward_on_a_side_stream,
    polling,
]
