# SPDX-License-Identifier: BSD-3-Clause
"""torch.npusim.MemPool and use_mem_pool: which allocations a pool serves, how it ends (rule L4)."""

import gc
import threading

import pytest
import torch

MIB = 1 << 20


def allocate(megabytes, device="npusim"):
    return torch.empty(megabytes * MIB, dtype=torch.uint8, device=device)


def segments_of(pool, device=0):
    return [s for s in pool.snapshot() if s["device"] == device]


def pool_of(tensor):
    address = tensor.data_ptr()
    (segment,) = [
        s
        for s in torch.npusim.memory_snapshot()
        if s["address"] <= address < s["address"] + s["total_size"]
    ]
    return segment["segment_pool_id"]


@pytest.fixture(autouse=True)
def _nothing_cached(empty_device):
    yield
    gc.collect()
    torch.npusim.empty_cache()


def test_pools_have_ids_of_their_own():
    first, second = torch.npusim.MemPool(), torch.npusim.MemPool()
    assert first.id[0] == second.id[0] == 0
    assert 0 < first.id[1] < second.id[1]
    assert first.device == torch.npusim.current_device()


def test_only_what_is_allocated_inside_is_in_the_pool():
    pool = torch.npusim.MemPool()
    before = allocate(1)
    with torch.npusim.use_mem_pool(pool):
        inside = allocate(1)
        copied = before.clone()
    after = allocate(1)
    assert pool_of(before) == pool_of(after) == (0, 0)
    assert pool_of(inside) == pool_of(copied) == pool.id
    assert sum(s["allocated_size"] for s in segments_of(pool)) == 2 * MIB
    with torch.npusim.use_mem_pool(pool):
        address = torch.npusim.caching_allocator_alloc(4096)
    assert sum(s["allocated_size"] for s in segments_of(pool)) == 2 * MIB + 4096
    torch.npusim.caching_allocator_delete(address)


def test_results_of_kernels_on_host_views_are_in_the_pool():
    pool = torch.npusim.MemPool()
    x = torch.ones(64, 64, device="npusim")
    with torch.npusim.use_mem_pool(pool):
        product = x @ x
        ordered = torch.sort(x)[0]
    assert pool_of(product) == pool_of(ordered) == pool.id


def test_a_pool_reuses_what_is_freed_in_it():
    pool = torch.npusim.MemPool()
    with torch.npusim.use_mem_pool(pool):
        first = allocate(4).data_ptr()
        again = allocate(4)
    assert again.data_ptr() == first
    del again
    assert allocate(4).data_ptr() != first, "free memory of a pool is not for others"


def test_nested_scopes_allocate_from_the_innermost():
    outer, middle, inner = (torch.npusim.MemPool() for _ in range(3))
    kept = []
    with torch.npusim.use_mem_pool(outer):
        kept.append(allocate(20))
        with torch.npusim.use_mem_pool(middle):
            kept.append(allocate(20))
            with torch.npusim.use_mem_pool(inner):
                kept.append(allocate(20))
            kept.append(allocate(20))
        kept.append(allocate(20))
    assert [len(segments_of(pool)) for pool in (outer, middle, inner)] == [2, 2, 1]


def test_a_scope_is_of_one_device():
    pool = torch.npusim.MemPool()
    with torch.npusim.use_mem_pool(pool, 1):
        here, there = allocate(1), allocate(1, "npusim:1")
        assert pool.use_count() == 1, "counted on the device that the pool was made on"
    assert not segments_of(pool, 0)
    assert len(segments_of(pool, 1)) == 1
    with torch.npusim.use_mem_pool(pool, "npusim:1"):  # live memory, no users since
        more = allocate(1, "npusim:1")
    assert len(segments_of(pool, 1)) == 1
    del here, there, more


def test_use_count():
    pool = torch.npusim.MemPool()
    assert pool.use_count() == 1
    with torch.npusim.use_mem_pool(pool):
        assert pool.use_count() == 2
    assert pool.use_count() == 1


def test_a_scope_ends_with_an_error():
    pool = torch.npusim.MemPool()
    with pytest.raises(ZeroDivisionError), torch.npusim.use_mem_pool(pool):
        1 / 0  # noqa: B018
    assert pool.use_count() == 1
    assert pool_of(allocate(1)) == (0, 0)


def test_other_threads_are_not_routed():
    pool = torch.npusim.MemPool()
    found = {}

    def work():
        found["thread"] = pool_of(allocate(1))
        with torch.npusim.use_mem_pool(pool):
            found["own scope"] = pool_of(allocate(1))

    x = torch.ones(1000, device="npusim", requires_grad=True)
    with torch.npusim.use_mem_pool(pool):
        loss = (x * x).sum()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(60)
        loss.backward()
    assert found == {"thread": (0, 0), "own scope": pool.id}
    assert pool_of(x.grad) == (0, 0), "the engine's threads allocate from the default pool"


def test_the_end_of_a_pool_gives_its_memory_back():
    reserved = torch.npusim.memory_reserved()
    pool = torch.npusim.MemPool()
    with torch.npusim.use_mem_pool(pool):
        allocate(30)
    torch.npusim.empty_cache()
    assert torch.npusim.memory_reserved() == reserved + 30 * MIB, "kept while the pool lives"
    del pool
    assert torch.npusim.memory_reserved() == reserved


def test_live_tensors_outlive_their_pool():
    reserved = torch.npusim.memory_reserved()
    pool = torch.npusim.MemPool()
    with torch.npusim.use_mem_pool(pool):
        kept = torch.full((30 * MIB,), 7, dtype=torch.uint8, device="npusim")
        allocate(30)
    del pool
    assert torch.npusim.memory_reserved() == reserved + 30 * MIB
    assert int(kept[-1]) == 7
    del kept
    torch.npusim.empty_cache()
    assert torch.npusim.memory_reserved() == reserved


def test_a_pool_that_dies_inside_its_scope():
    pool = torch.npusim.MemPool()
    with torch.npusim.use_mem_pool(pool):
        identity = pool.id
        del pool
        inside = allocate(1)
    assert pool_of(inside) == identity


def test_empty_cache_of_one_pool():
    pool = torch.npusim.MemPool()
    with torch.npusim.use_mem_pool(pool, 1):
        allocate(30, "npusim:1")
    assert segments_of(pool, 1), "cached: on that device nobody uses the pool any more"
    torch.npusim.empty_cache()
    assert not segments_of(pool, 1)


def test_the_last_resort_of_others(run_python):
    script = """
        import torch, torch_npusim
        pool = torch.npusim.MemPool(use_on_oom={use_on_oom})
        with torch.npusim.use_mem_pool(pool):
            address = torch.empty(40 << 20, dtype=torch.uint8, device="npusim").data_ptr()
        x = torch.empty(40 << 20, dtype=torch.uint8, device="npusim")
        print(x.data_ptr() == address)
    """
    memory = {"NPUSIM_DEVICE_MEMORY": "64MiB"}
    assert run_python(script.format(use_on_oom=True), environment=memory) == "True\n"
    failed = run_python(script.format(use_on_oom=False), environment=memory, check=False)
    assert "OutOfMemoryError" in failed.stderr
    assert failed.returncode == 1


def test_pools_without_users_are_given_back_before_memory_runs_out(run_python):
    run_python(
        """
        import torch, torch_npusim
        pool = torch.npusim.MemPool()
        with torch.npusim.use_mem_pool(pool):
            kept = torch.empty(4 << 20, dtype=torch.uint8, device="npusim")
            torch.empty(40 << 20, dtype=torch.uint8, device="npusim")
            other = torch.empty(4 << 20, dtype=torch.uint8, device="npusim")
        kept = pool = None
        x = torch.empty(40 << 20, dtype=torch.uint8, device="npusim")
        assert torch.npusim.memory_stats()["num_ooms"] == 0
        """,
        environment={"NPUSIM_DEVICE_MEMORY": "64MiB"},
    )


def test_a_pool_that_does_not_split():
    pool = torch.npusim.MemPool(no_split=True)
    with torch.npusim.use_mem_pool(pool):
        first, second = allocate(2), allocate(2)
    assert len(segments_of(pool)) == 2
    assert all(len(s["blocks"]) == 1 for s in segments_of(pool))
    del first, second


def test_statistics_by_pool():
    pool = torch.npusim.MemPool()
    with torch.npusim.use_mem_pool(pool):
        kept = allocate(30)
    name = f"reserved_bytes_by_private_pools.{pool.id[0]}_{pool.id[1]}"
    stats = torch.npusim.memory_stats()
    assert stats[f"{name}.all.current"] == stats[f"{name}.large_pool.current"] == 30 * MIB
    assert stats[f"{name}.small_pool.current"] == 0
    by_pool = torch.npusim.memory_stats_as_nested_dict()["reserved_bytes_by_private_pools"]
    assert by_pool[pool.id]["all"]["peak"] == 30 * MIB
    general = torch.accelerator.memory.memory_stats()
    assert general["reserved_bytes.all.current"] == stats["reserved_bytes.all.current"]
    del kept


def test_history_names_the_pool():
    pool = torch.npusim.MemPool()
    torch.npusim.memory._record_memory_history(context=None, clear_history=True)
    try:
        with torch.npusim.use_mem_pool(pool):
            address = allocate(30).data_ptr()
        trace = torch.npusim.memory._snapshot()["device_traces"][0]
    finally:
        torch.npusim.memory._record_memory_history(None)
    entries = [e for e in trace if e.get("addr") == address]
    actions = ["segment_alloc", "alloc", "free_requested", "free_completed"]
    assert [e["action"] for e in entries] == actions
    assert all(e["pool_id"] == pool.id for e in entries)


def test_wrong_uses_are_named():
    pool = torch.npusim.MemPool()
    with pytest.raises(TypeError, match=r"expected a torch.npusim.MemPool, got \(0, 1\)"):
        torch.npusim.use_mem_pool((0, 1)).__enter__()
    with torch.npusim.use_mem_pool(pool):
        with pytest.raises(RuntimeError, match="leave that scope before entering it again"):
            torch.npusim.use_mem_pool(pool).__enter__()
        assert pool.use_count() == 2
    with pytest.raises(AssertionError, match=r"Invalid device id\nThere is no device 99"):
        torch.npusim.use_mem_pool(pool, 99).__enter__()


def test_a_forked_child_leaves_the_pools_alone(run_python):
    run_python("""
        import os, torch, torch_npusim
        pool = torch.npusim.MemPool()
        with torch.npusim.use_mem_pool(pool):
            kept = torch.ones(10, device="npusim")
        child = os.fork()
        if child == 0:
            del pool
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert pool.use_count() == 1
        assert kept.sum().item() == 10
    """)


def test_a_pool_at_the_end_of_the_process(run_python):
    run_python("""
        import torch, torch_npusim
        pool = torch.npusim.MemPool()
        scope = torch.npusim.use_mem_pool(pool)
        scope.__enter__()
        kept = torch.ones(10, device="npusim")
    """)
