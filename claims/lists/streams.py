# SPDX-License-Identifier: BSD-3-Clause
"""Accesses before another stream, a copy or an event is done."""

import torch

from claims.claim import Brief
from claims.lists.device_calls import x


def milliseconds(timing, waits):
    start, end = (torch.cuda.Event(enable_timing=timing) for _ in range(2))
    start.record()
    x(2048, 2048) @ x(2048, 2048)
    end.record()
    if waits:
        end.synchronize()
    return start.elapsed_time(end)


def copied_home(waits):
    home = torch.empty(1 << 20).pin_memory()
    home.copy_(x(1 << 20), non_blocking=True)
    if waits:
        torch.cuda.synchronize()
    return home.sum()


def buffer_used_again(waits):
    staging = torch.ones(1 << 20).pin_memory()
    staging.to("cuda", non_blocking=True)
    if waits:
        torch.cuda.synchronize()
    staging.zero_()


def side_stream(waits):
    data, side = x(1 << 20), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        result = data * 2
    if waits:
        torch.cuda.current_stream().wait_stream(side)
    return result + 1


def downloaded(read, early):
    host = torch.zeros(4096, pin_memory=True)
    host.copy_(x(4096), non_blocking=True)
    if not early:
        torch.cuda.current_stream().synchronize()
    value = read(host)
    torch.cuda.synchronize()
    return value


CLAIMS = {
    "event_without_timing": Brief(
        r"enable_timing",
        lambda data: milliseconds(False, True),
        lambda data: milliseconds(True, True),
    ),
    "event_that_has_not_happened": Brief(
        r"completed|not ready",
        lambda data: milliseconds(True, False),
        lambda data: milliseconds(True, True),
    ),
    "reads_before_the_copy_ends": Brief(
        r"race|before", lambda data: copied_home(False), lambda data: copied_home(True)
    ),
    "writes_before_the_copy_ends": Brief(
        r"race|before", lambda data: buffer_used_again(False), lambda data: buffer_used_again(True)
    ),
    "result_of_another_stream": Brief(
        r"race", lambda data: side_stream(False), lambda data: side_stream(True)
    ),
    "array_of_a_download": Brief(
        r"an array of Tensor.numpy\(\) reads float32\[4096\] on the host",
        lambda data: downloaded(lambda host: host.numpy().sum(), early=True),
        lambda data: downloaded(lambda host: host.numpy().sum(), early=False),
    ),
    "list_of_a_download": Brief(
        r"Tensor.tolist\(\) reads float32\[4096\] on the host",
        lambda data: downloaded(lambda host: host.tolist()[0], early=True),
        lambda data: downloaded(lambda host: host.tolist()[0], early=False),
    ),
    "array_that_is_read_after_the_wait": Brief(
        r"an array of Tensor.numpy\(\) reads",
        lambda data: downloaded(lambda host: host.numpy().tolist()[0], early=True),
        lambda data: downloaded(lambda host: host.numpy(), early=True).sum(),
    ),
}
