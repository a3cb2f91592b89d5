# SPDX-License-Identifier: BSD-3-Clause
"""Calls each callback of torch.cuda._gpu_trace, which cannot be turned off again."""

import torch
from torch.cuda import _gpu_trace

KINDS = (
    "event_creation",
    "event_deletion",
    "event_record",
    "event_wait",
    "memory_allocation",
    "memory_deallocation",
    "stream_creation",
    "device_synchronization",
    "stream_synchronization",
    "event_synchronization",
)
heard = []


def told(since=0):
    """Returns the kinds that were heard, each as often as it was."""
    return " ".join(kind for kind, *_ in heard[since:])


for kind in KINDS:
    register = getattr(_gpu_trace, f"register_callback_for_{kind}")
    register(lambda *handles, kind=kind: heard.append((kind, *handles)))

x = torch.ones(4, device="cuda")
print("before:", len(heard))
torch._C._activate_gpu_trace()

stream = torch.cuda.Stream()
created = [handle for kind, handle in heard if kind == "stream_creation"]
print("streams:", len(heard) == len(created) == len(set(created)), stream.cuda_stream in created)
torch.cuda.Stream()
print("another stream:", len(heard) - len(created))
heard.clear()

y = torch.empty(4, device="cuda")
address = y.data_ptr()
del y
print("memory:", heard == [("memory_allocation", address), ("memory_deallocation", address)])
heard.clear()

event = torch.cuda.Event()
print("unrecorded:", event.cuda_event, event._as_parameter_.value, heard)
event.record()
event.record(stream)
stream.wait_event(event)
event.synchronize()
handle = event.cuda_event
same = event._as_parameter_.value == handle
del event
print("handles:", same, isinstance(handle, int), handle != 0)
expected = [
    ("event_creation", handle),
    ("event_record", handle, 0),
    ("event_record", handle, stream.cuda_stream),
    ("event_wait", handle, stream.cuda_stream),
    ("event_synchronization", handle),
    ("event_deletion", handle),
]
print("event:", heard == expected)
heard.clear()

torch.cuda.synchronize()
stream.synchronize()
x.cpu()
x.sum().item()
waits = [entry for entry in heard if "synchronization" in entry[0]]
print("waits:", waits == [
    ("device_synchronization",),
    ("stream_synchronization", stream.cuda_stream),
    ("stream_synchronization", 0),
    ("stream_synchronization", 0),
])  # fmt: skip
heard.clear()
stream.wait_stream(torch.cuda.current_stream())
print("wait_stream:", told())

asked = []
torch._C._cuda_attach_out_of_memory_observer(lambda *numbers: asked.append(numbers))
try:
    torch.empty(5 << 30, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    (device, wanted, total, free), total_now = *asked, torch.cuda.mem_get_info()[1]
    print("out of memory:", device, wanted, total == total_now, 0 < free < total)
torch.cuda.set_per_process_memory_fraction(0.5)
try:
    torch.empty(700 << 20, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    print("of a fraction:", asked[1][1:3])
