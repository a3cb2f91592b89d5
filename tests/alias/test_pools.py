# SPDX-License-Identifier: BSD-3-Clause
"""Private pools as torch's graph trees use them: scopes, checkpoints, live blocks."""

import pytest
import torch

BYTES = 20 << 20


def block(bytes_=BYTES):
    return torch.ones(bytes_, dtype=torch.uint8, device="cuda")


def segments_of(pool):
    return [s for s in torch.cuda.memory_snapshot() if s["segment_pool_id"] == pool]


def live(pool):
    return [
        item["address"]
        for segment in segments_of(pool)
        for item in segment["blocks"]
        if item["state"] == "active_allocated"
    ]


@pytest.fixture
def pool():
    """A pool that a graph has, with two results in it."""
    handle = torch.cuda.graph_pool_handle()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=handle):
        results = [block(), block()]
    yield handle, results
    del graph
    results.clear()
    torch.cuda.empty_cache()


def test_a_stream_allocates_from_a_pool_until_the_end_of_its_scope(pool):
    handle, results = pool
    with torch.cuda.stream(torch.cuda.Stream()):
        torch._C._cuda_beginAllocateCurrentStreamToPool(0, handle)
        inside = block()
        with torch.cuda.stream(torch.cuda.Stream()):
            other = block()
        torch._C._cuda_endAllocateToPool(0, handle)
        outside = block()
        torch._C._cuda_releasePool(0, handle)
    assert set(live(handle)) == {x.data_ptr() for x in (*results, inside)}
    assert not {outside.data_ptr(), other.data_ptr()} & set(live(handle))


def test_live_blocks_are_compared_with_addresses(pool):
    handle, results = pool
    first, second = (x.data_ptr() for x in results)
    check = torch._C._cuda_checkPoolLiveAllocations
    assert check(0, handle, {first, second})
    assert not check(0, handle, {first})
    assert not check(0, handle, {first, second, 0})


def test_a_checkpoint_brings_blocks_back_without_owners(pool):
    handle, results = pool
    state = torch._C._cuda_getCheckpointState(0, handle)
    before = live(handle)
    results.clear()
    assert not live(handle)
    torch._C._cuda_setCheckpointPoolState(0, state, [], [])
    assert live(handle) == before
    for address in before:
        torch._C._cuda_cudaCachingAllocator_raw_delete(address)
    assert not live(handle)


def test_storages_made_since_a_checkpoint_stop_owning_their_memory(pool):
    handle, results = pool
    state = torch._C._cuda_getCheckpointState(0, handle)
    before = live(handle)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=handle):
        later = block()
    assert len(live(handle)) == 3
    torch._C._cuda_setCheckpointPoolState(0, state, [later.untyped_storage()._cdata], [])
    assert live(handle) == before
    del later
    assert live(handle) == before
    assert [x.data_ptr() for x in results] == sorted(before)


def test_storages_own_blocks_of_a_checkpoint_again(pool):
    handle, results = pool
    state = torch._C._cuda_getCheckpointState(0, handle)
    addresses = [x.data_ptr() for x in results]
    results.clear()
    device = torch.device("cuda", 0)
    first, second = (
        torch._C._construct_storage_from_data_pointer(x, device, BYTES) for x in addresses
    )
    torch._C._cuda_setCheckpointPoolState(0, state, [], [first._cdata, second._cdata])
    assert live(handle) == sorted(addresses)
    del first
    assert live(handle) == [addresses[1]]
    del second
    assert live(handle) == []
