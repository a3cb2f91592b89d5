# SPDX-License-Identifier: BSD-3-Clause
"""torch.npusim.memory: statistics, summary, snapshot, history, limits."""

import pickle
import re
import sys
import threading

import pytest
import torch

from torch_npusim.patches import is_version

MIB = 1 << 20
METRICS = ["current", "peak", "allocated", "freed"]
BY_POOL = [
    "allocation",
    "segment",
    "active",
    "inactive_split",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
]
COUNTERS = ["num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc"]
COUNTERS += ["num_device_free", "max_split_size"]


def test_statistics_have_the_keys_of_torch_cuda(empty_device):
    torch.npusim.init()
    wanted = {
        f"{stat}.{pool}.{metric}"
        for stat in BY_POOL
        for pool in ("all", "small_pool", "large_pool")
        for metric in METRICS
    }
    wanted |= {
        f"{stat}.{metric}"
        for stat in ("oversize_allocations", "oversize_segments")
        for metric in METRICS
    }
    stats = torch.npusim.memory_stats()
    assert wanted | set(COUNTERS) <= set(stats)
    assert list(stats) == sorted(stats)
    assert all(isinstance(value, int) for value in stats.values())


def test_nested_statistics_say_the_same(empty_device):
    flat = torch.npusim.memory_stats()
    nested = torch.npusim.memory_stats_as_nested_dict()
    assert nested["active_bytes"]["all"]["peak"] == flat["active_bytes.all.peak"]
    assert nested["num_ooms"] == flat["num_ooms"]


def test_accumulated_statistics_can_be_reset(empty_device):
    torch.empty(MIB, device=empty_device)
    assert torch.npusim.memory_stats()["allocation.all.allocated"] > 0
    torch.npusim.reset_accumulated_memory_stats()
    stats = torch.npusim.memory_stats()
    assert stats["allocation.all.allocated"] == stats["allocation.all.freed"] == 0
    assert stats["num_device_alloc"] == 0


def test_mem_get_info_counts_what_is_reserved(empty_device):
    free, total = torch.npusim.mem_get_info()
    assert total == torch.npusim.get_device_properties().total_memory
    reserved = torch.npusim.memory_reserved()
    tensor = torch.empty(30 * MIB, dtype=torch.uint8, device=empty_device)
    grown = torch.npusim.memory_reserved() - reserved
    assert torch.npusim.mem_get_info()[0] == free - grown
    del tensor
    torch.npusim.empty_cache()
    assert torch.npusim.mem_get_info() == (free, total)


def test_empty_cache_of_all_devices():
    torch.npusim.synchronize(1)
    torch.npusim.empty_cache()
    reserved = torch.npusim.memory_reserved(1)  # by what earlier tests still hold
    torch.empty(30 * MIB, dtype=torch.uint8, device="npusim:1")
    assert torch.npusim.memory_reserved(1) >= reserved + 30 * MIB
    torch.npusim.synchronize(1)
    torch.npusim.empty_cache()
    assert torch.npusim.memory_reserved(1) == reserved


def test_memory_fraction_is_a_limit(empty_device):
    _, total = torch.npusim.mem_get_info()
    try:
        torch.npusim.set_per_process_memory_fraction(64 * MIB / total)
        assert torch.npusim.get_per_process_memory_fraction() == 64 * MIB / total
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(100 * MIB, dtype=torch.uint8, device=empty_device)
        torch.empty(30 * MIB, dtype=torch.uint8, device=empty_device)
    finally:
        torch.npusim.set_per_process_memory_fraction(1.0)


@pytest.mark.parametrize(
    ("fraction", "error", "text"),
    [
        (1, TypeError, "Invalid type for fraction argument, must be `float`"),
        (1.5, ValueError, "Invalid fraction value: 1.5. Allowed range: 0~1"),
        (-0.5, ValueError, "Invalid fraction value: -0.5. Allowed range: 0~1"),
    ],
)
def test_memory_fraction_is_validated(fraction, error, text):
    with pytest.raises(error, match=text):
        torch.npusim.set_per_process_memory_fraction(fraction)


def test_raw_allocations(empty_device):
    before = torch.npusim.memory_allocated()
    address = torch.npusim.caching_allocator_alloc(1000)
    assert address % 32 == 0
    assert torch.npusim.memory_allocated() > before
    torch.npusim.caching_allocator_delete(address)
    assert torch.npusim.memory_allocated() == before
    side = torch.npusim.caching_allocator_alloc(1000, 1, torch.npusim.Stream(1))
    torch.npusim.caching_allocator_delete(side)


def test_raw_allocations_are_allocations_like_others(empty_device):
    from torch_npusim.sim import poison

    activities = [torch.profiler.ProfilerActivity.CPU]
    profile = torch.profiler.profile(activities=activities, profile_memory=True)
    with profile, poison.use_mode("all"):
        address = torch.npusim.caching_allocator_alloc(1024)
        torch.npusim.caching_allocator_delete(address)
    told = [event for event in profile.events() if event.name == "[memory]"]
    assert [event.device_memory_usage for event in told] == [1024, -1024]
    again = torch.empty(1024, dtype=torch.uint8, device="npusim")
    assert again.data_ptr() == address
    assert (again == 0xDF).all()


def test_raw_allocation_of_nothing():
    assert torch.npusim.caching_allocator_alloc(0) == 0
    torch.npusim.caching_allocator_delete(0)


def test_wrong_frees_are_named():
    address = torch.npusim.caching_allocator_alloc(4096)
    with pytest.raises(RuntimeError, match=r"(?i)interior|inside"):
        torch.npusim.caching_allocator_delete(address + 32)
    torch.npusim.caching_allocator_delete(address)
    with pytest.raises(RuntimeError, match=r"(?i)free"):
        torch.npusim.caching_allocator_delete(address)
    with pytest.raises(RuntimeError, match="not an address of an npusim device"):
        torch.npusim.caching_allocator_delete(0x1000)


def test_raw_allocation_needs_a_stream_or_its_id():
    with pytest.raises(TypeError, match="Invalid type for stream argument"):
        torch.npusim.caching_allocator_alloc(32, stream="side")


def test_summary_is_pinned(run_python):
    text = run_python("""
        import torch, torch_npusim
        torch.empty(1 << 20, device="npusim")
        kept = torch.empty(1 << 18, device="npusim")
        print(torch.npusim.memory_summary(abbreviated=True), end="")
        assert len(torch.npusim.memory_summary()) > len(torch.npusim.memory_summary(0, True))
    """)
    assert text == SUMMARY


def test_summary_names_the_lines_that_hold_memory_while_a_history_is_recorded(run_python):
    text = run_python("""
        import torch, torch_npusim
        torch.npusim.memory._record_memory_history()
        def grow():
            return torch.nn.functional.pad(torch.ones(1 << 18, device="npusim"), (0, 4))
        kept = [grow() for _ in range(3)]
        print(torch.npusim.memory_summary(abbreviated=True), end="")
    """)
    _, _, lines = text.partition("In use, by the line that asked for it")
    assert re.search(r"3\.00 MiB in 3: \S*:5 in grow", lines), text
    assert "functional.py" not in lines


SUMMARY = """\
|===============================================================================|
| Memory of npusim:0 (npusim-one)                                               |
| OOMs: 0    allocation retries: 0                                              |
| fragmentation: 4.5% of reserved    largest free block: 20.00 MiB              |
|===============================================================================|
| Metric                |     Current |        Peak | Total alloc | Total freed |
|-------------------------------------------------------------------------------|
| Allocated memory      |    1.00 MiB |    4.00 MiB |    5.00 MiB |    4.00 MiB |
|-------------------------------------------------------------------------------|
| Active memory         |    1.00 MiB |    4.00 MiB |    5.00 MiB |    4.00 MiB |
|-------------------------------------------------------------------------------|
| Requested memory      |    1.00 MiB |    4.00 MiB |    5.00 MiB |    4.00 MiB |
|-------------------------------------------------------------------------------|
| Reserved memory       |   22.00 MiB |   22.00 MiB |   22.00 MiB |         0 B |
|-------------------------------------------------------------------------------|
| Non-releasable memory |    1.00 MiB |   16.00 MiB |   17.00 MiB |   16.00 MiB |
|-------------------------------------------------------------------------------|
| Allocations           |           1 |           1 |           2 |           1 |
|-------------------------------------------------------------------------------|
| Active blocks         |           1 |           1 |           2 |           1 |
|-------------------------------------------------------------------------------|
| Segments              |           2 |           2 |           2 |           0 |
|-------------------------------------------------------------------------------|
| Non-releasable blocks |           1 |           1 |           2 |           1 |
|-------------------------------------------------------------------------------|
| Oversize allocations  |           0 |           0 |           0 |           0 |
|-------------------------------------------------------------------------------|
| Oversize segments     |           0 |           0 |           0 |           0 |
|===============================================================================|
"""


def test_snapshot_agrees_with_the_statistics(empty_device):
    tensors = [torch.empty(size, device=empty_device) for size in (10, 1000, MIB)]
    segments = [s for s in torch.npusim.memory_snapshot() if s["device"] == 0]
    stats = torch.npusim.memory_stats()
    assert sum(s["total_size"] for s in segments) == stats["reserved_bytes.all.current"]
    assert sum(s["allocated_size"] for s in segments) == stats["allocated_bytes.all.current"]
    for segment in segments:
        sizes = [block["size"] for block in segment["blocks"]]
        assert sum(sizes) == segment["total_size"]
    addresses = {b["address"]: b for s in segments for b in s["blocks"]}
    for tensor in tensors:
        assert addresses[tensor.data_ptr()]["state"] == "active_allocated"
        assert addresses[tensor.data_ptr()]["requested_size"] == tensor.nbytes


def record(**arguments):
    torch.npusim.memory._record_memory_history(**arguments)


def test_history_says_who_allocated(empty_device):
    record(stacks="python", clear_history=True)
    try:
        kept = torch.empty(12345, device=empty_device)
        address = kept.data_ptr()
        del kept
        trace = torch.npusim.memory._snapshot()["device_traces"][0]
    finally:
        record(enabled=None)
    entries = [e for e in trace if e.get("addr") == address and "segment" not in e["action"]]
    assert [entry["action"] for entry in entries] == ["alloc", "free_requested", "free_completed"]
    assert all(entry["size"] == 4 * 12345 for entry in entries)
    frames = [frame["name"] for frame in entries[0]["frames"]]
    assert "test_history_says_who_allocated" in frames


def test_history_where_addr2line_is_missing(run_python):
    run_python(
        """
        import torch, torch_npusim
        torch.npusim.memory._record_memory_history()
        kept = torch.empty(12345, device="npusim")
        trace = torch.npusim.memory._snapshot()["device_traces"][0]
        (frames,) = [e["frames"] for e in trace if e["action"] == "alloc"]
        names = [frame["name"] for frame in frames]
        assert "<module>" in names
        assert any("::" in name for name in names), names
        """,
        environment={"PATH": ""},
    )


def test_history_keeps_the_newest_entries(empty_device):
    record(max_entries=4, context=None, clear_history=True)
    try:
        for _ in range(10):
            torch.empty(100, device=empty_device)
        trace = torch.npusim.memory._snapshot()["device_traces"][0]
    finally:
        record(enabled=None)
    assert len(trace) <= 4


def test_history_of_allocations_by_several_threads(empty_device):
    """Stacks are gathered with the GIL; the allocator's lock must not be held meanwhile."""

    def work():
        x = torch.ones(100, 100, device=empty_device, requires_grad=True)
        for _ in range(5):
            (x @ x).sum().backward()  # the backward pass allocates on an engine thread

    record(max_entries=10_000, clear_history=True)
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        trace = torch.npusim.memory._snapshot()["device_traces"][0]
    finally:
        record(enabled=None)
    assert not any(thread.is_alive() for thread in threads)
    assert sum(entry["action"] == "alloc" for entry in trace) > 40


def test_state_history_keeps_stacks_of_live_blocks(empty_device):
    record(enabled="state", stacks="python")
    try:
        kept = torch.empty(777, device=empty_device)
        segments = torch.npusim.memory_snapshot()
    finally:
        record(enabled=None)
    (block,) = [b for s in segments for b in s["blocks"] if b["address"] == kept.data_ptr()]
    assert any("state_history" in frame["name"] for frame in block["frames"])


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"enabled": "on"}, RuntimeError, "expected state to be 'state', 'all', or None"),
        (
            {"context": "on"},
            RuntimeError,
            "expected context to be 'state', 'alloc', 'all', or None",
        ),
        ({"stacks": "c"}, RuntimeError, "expected stacks to be 'python', or 'all'"),
        ({"max_entries": 0}, RuntimeError, "expected max_entries to be at least 1, got 0"),
        ({"enabled": True}, NotImplementedError, "pass 'all' or 'state' to start"),
        ({"skip_actions": ["oom"]}, NotImplementedError, "skip_actions"),
        ({"record_pinned_host_memory": True}, NotImplementedError, "record_pinned_host_memory"),
        ({"record_cuda": False}, NotImplementedError, "record_cuda"),
    ],
)
def test_history_arguments_are_validated(arguments, error, text):
    with pytest.raises(error, match=text):
        record(**arguments)


def test_history_has_the_signature_of_torch_cuda():
    import inspect

    ours = inspect.signature(torch.npusim.memory._record_memory_history)
    cuda = inspect.signature(torch.cuda.memory._record_memory_history)
    later = {"record_pinned_host_memory", "record_cuda"} if is_version("<2.14") else set()
    shared = [parameter for parameter in ours.parameters if parameter not in later]
    assert shared == list(cuda.parameters)
    for name in shared:
        assert ours.parameters[name].default == cuda.parameters[name].default
    assert ours.parameters["max_entries"].default == sys.maxsize


def test_dumped_snapshot_is_a_picture_for_torchs_viewer(tmp_path, empty_device):
    from torch.cuda import _memory_viz

    kept = torch.empty(1000, device=empty_device)
    torch.npusim.memory._dump_snapshot(tmp_path / "snapshot.pickle")
    content = (tmp_path / "snapshot.pickle").read_bytes()
    assert content[:2] == b"\x80\x04"  # pickle protocol 4
    snapshot = pickle.loads(content)
    assert _memory_viz.segsum(snapshot)
    assert "svg" in _memory_viz.trace_plot(snapshot) or "html" in _memory_viz.trace_plot(snapshot)
    del kept


def test_a_snapshot_does_not_wait_for_the_compiler(run_python):
    """torch imports its compiler, for seconds, to ask it about generated code."""
    out = run_python("""
        import sys
        import torch

        torch.npusim.memory._record_memory_history()

        def allocate():
            return torch.empty(1000, device="npusim")

        kept = allocate()
        for _ in range(2):
            frames = torch.npusim.memory._snapshot()["segments"][0]["blocks"][0]["frames"]
            names = [frame["name"] for frame in frames]
            print("allocate" in names, "torch._inductor" in sys.modules, "_inductor" in vars(torch))
    """)
    assert out == "True False False\nTrue False False\n"


def test_host_statistics_follow_pinned_memory():
    torch.npusim.init()
    # Accumulated: blocks of earlier tests may be given back between the two readings.
    before = torch.npusim.host_memory_stats().get("active_bytes.allocated", 0)
    pinned = torch.empty(4096, dtype=torch.uint8).pin_memory()
    stats = torch.npusim.host_memory_stats()
    assert stats["active_bytes.allocated"] == before + 4096
    assert stats["active_bytes.current"] >= 4096
    nested = torch.npusim.host_memory_stats_as_nested_dict()
    assert nested["active_bytes"]["current"] == stats["active_bytes.current"]
    assert list(stats) == sorted(stats)
    del pinned


@pytest.mark.parametrize(
    "use",
    [
        lambda: torch.npusim.list_gpu_processes(),
    ],
)
def test_what_is_not_supported_says_so(use):
    with pytest.raises(NotImplementedError, match="npusim"):
        use()
