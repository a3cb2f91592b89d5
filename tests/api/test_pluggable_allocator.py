# SPDX-License-Identifier: BSD-3-Clause
"""Allocators of one's own behind the live device: placement policies, and pairs of C functions."""

import subprocess
from pathlib import Path

import pytest
from processes import python
from repo.sources import ROOT

from torch_npusim.cpp_extension import include_paths

# With one thread: products on several round by the luck of threads under load, on the CPU too.
TRAINING = """
import torch, torch_npusim
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 8)).to("npusim")
optimizer = torch.optim.AdamW(model.parameters())
side = torch.npusim.Stream()
for step in range(4):
    x = torch.randn(16 + step, 64, device="npusim")
    side.wait_stream(torch.npusim.current_stream())
    with torch.npusim.stream(side):
        y = x * 2
        x.record_stream(side)
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 2:
        torch.npusim.empty_cache()
print(loss.item().hex(), sum(p.sum() for p in model.parameters()).item().hex())
"""

# Two functions in torch.cuda's manner, with a count of what is live; `wrong` does what it must not.
FUNCTIONS = """
#include "torch_npusim/memory.h"
#include <stdlib.h>

int live = 0;
int64_t last_stream = -1;

void* take(int64_t bytes, int device, int64_t stream) {
  void* memory = npusim_malloc(bytes, device);
  if (memory) ++live;
  last_stream = stream;
  return memory;
}
void give_back(void* address, int64_t bytes, int device, int64_t stream) {
  --live;
  npusim_free(address);
}

static void* one;
void* take_same(int64_t bytes, int device, int64_t stream) {
  if (!one) one = npusim_malloc(1 << 20, device);
  return one;
}
void* take_host(int64_t bytes, int device, int64_t stream) { return malloc(bytes); }
void* take_short(int64_t bytes, int device, int64_t stream) {
  return npusim_malloc(bytes / 2, device);
}
void* take_other(int64_t bytes, int device, int64_t stream) {
  return npusim_malloc(bytes, 1 - device);
}
void forget(void* address, int64_t bytes, int device, int64_t stream) {}
"""


def compiled(folder: Path, source: str | Path, name: str) -> str:
    if isinstance(source, str):
        (folder / f"{name}.c").write_text(source)
        source = folder / f"{name}.c"
    library = folder / f"{name}.so"
    includes = [f"-I{path}" for path in [*include_paths(), str(ROOT)]]
    subprocess.run(["cc", "-shared", "-fPIC", *includes, "-o", library, source], check=True)
    return str(library)


@pytest.fixture(scope="module")
def functions(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("functions"), FUNCTIONS, "functions")


@pytest.fixture(scope="module")
def next_fit(tmp_path_factory):
    source = ROOT / "allocator" / "placement" / "examples" / "next_fit_policy.c"
    return compiled(tmp_path_factory.mktemp("policy"), source, "next_fit")


@pytest.fixture(scope="module")
def plain_training(tmp_path_factory):
    done = python("-c", TRAINING, variables={"PYTHONPATH": str(ROOT)}, timeout=120, check=True)
    return done.stdout


# --- Placement policies


@pytest.mark.parametrize("policy", ["buddy,arena:8", "bfc", "banked", "library"])
def test_training_on_a_policy_gives_the_same_bits(run_python, plain_training, next_fit, policy):
    policy = f"{next_fit},arena_mb:64" if policy == "library" else policy
    script = TRAINING + f"\nassert torch.npusim.get_allocator_backend() == {policy!r}\n"
    assert run_python(script, environment={"NPUSIM_ALLOCATOR": policy}) == plain_training


def test_a_policy_places_blocks_in_its_own_way(run_python):
    run_python(
        """
        import torch, torch_npusim
        kept = [torch.empty(3000, dtype=torch.uint8, device="npusim") for _ in range(3)]
        assert [t.data_ptr() - kept[0].data_ptr() for t in kept] == [0, 4096, 8192]
        (segment,) = torch.npusim.memory_snapshot()
        assert segment["total_size"] == torch.npusim.memory_reserved() == 8 << 20
        assert torch.npusim.memory_allocated() == 3 * 4096
        sizes = [b["size"] for b in segment["blocks"]]
        assert sizes == [4096, 4096, 4096, (8 << 20) - 3 * 4096]
        settings = torch.npusim.memory._snapshot()["allocator_settings"]
        assert set(settings.values()) == {"buddy,arena:8"}
        assert "Allocated memory" in torch.npusim.memory_summary()
        kept.clear()
        torch.npusim.empty_cache()
        assert torch.npusim.memory_reserved() == 0
        """,
        environment={"NPUSIM_ALLOCATOR": "buddy,arena:8"},
    )


def test_a_policy_that_runs_out(run_python):
    run_python(
        """
        import torch, torch_npusim
        kept = torch.empty(20 << 20, dtype=torch.uint8, device="npusim")
        try:
            torch.empty(40 << 20, dtype=torch.uint8, device="npusim")
        except torch.OutOfMemoryError as error:
            assert "Tried to allocate 40.00 MiB" in str(error), error
        else:
            raise AssertionError("64 MiB more do not fit")
        stats = torch.npusim.memory_stats()
        assert (stats["num_ooms"], stats["num_alloc_retries"]) == (1, 1)
        pool = torch.npusim.MemPool()
        with torch.npusim.use_mem_pool(pool):
            torch.empty(1000, device="npusim")
        """,
        environment={"NPUSIM_ALLOCATOR": "buddy", "NPUSIM_DEVICE_MEMORY": "64MiB"},
    )


def test_a_wrong_policy_is_an_error_not_a_corruption(run_python, tmp_path):
    library = compiled(
        tmp_path,
        """
        #include "allocator/placement/policy_abi.h"
        static const npusim_device* device;
        static uint64_t arena;
        static int self;
        static void* create(const npusim_device* d, const char* s, char* e, size_t n) {
          device = d; return &self;
        }
        static void destroy(void* p) {}
        static uint64_t place(void* p, const npusim_request* request, uint64_t* bytes) {
          if (!arena) arena = device->acquire(device->self, 1 << 20);
          return arena;  /* always the same */
        }
        static void take_back(void* p, uint64_t address, const npusim_request* request) {}
        static const npusim_policy_table table = {
            NPUSIM_POLICY_ABI_VERSION, create, destroy, place, take_back, 0};
        const npusim_policy_table* npusim_policy(void) { return &table; }
        """,
        "wrong",
    )
    run_python(
        """
        import torch, torch_npusim
        x = torch.ones(10, device="npusim")
        try:
            torch.zeros(10, device="npusim")
        except RuntimeError as error:
            assert "which is in use" in str(error), error
        else:
            raise AssertionError("two tensors in one place")
        assert x.tolist() == [1.0] * 10
        """,
        environment={"NPUSIM_ALLOCATOR": library, "NPUSIM_DEVICE_COUNT": "1"},
    )


@pytest.mark.parametrize(
    ("setting", "rules", "text"),
    [
        (
            "best",
            "",
            "expected one of npusim, cuda-2.13, cuda-2.12, cuda-2.11, cuda-2.9, cuda-2.4, ascend, "
            "bfc, buddy, banked",
        ),
        ("planned", "", "or the path of a shared library"),
        ("buddy,arenas:8", "", '"arenas" is not a key'),
        ("./missing.so", "", "cannot be loaded"),
        (
            "buddy",
            "max_split_size_mb:64",
            "PYTORCH_ALLOC_CONF: its rules are the caching allocator",
        ),
    ],
)
def test_settings_that_are_not_understood(run_python, setting, rules, text):
    failed = run_python(
        "import torch, torch_npusim; torch.empty(1, device='npusim')",
        environment={"NPUSIM_ALLOCATOR": setting, "PYTORCH_ALLOC_CONF": rules},
        check=False,
    )
    assert "ValueError" in failed.stderr
    assert text in failed.stderr


# --- A pair of functions


def test_training_on_functions_gives_the_same_bits(run_python, plain_training, functions):
    prelude = f"""
import ctypes, torch, torch_npusim
memory = torch.npusim.memory
mine = memory.NPUSIMPluggableAllocator({functions!r}, "take", "give_back")
memory.change_current_allocator(mine)
assert torch.npusim.get_allocator_backend() == "pluggable"
"""
    check = f"""
import gc
live = ctypes.c_int.in_dll(ctypes.CDLL({functions!r}), "live")
stats = torch.npusim.memory_stats()
assert 0 < live.value == stats["active.all.current"]
assert stats["allocation.all.allocated"] == stats["num_device_alloc"]
del model, optimizer, x, y, loss, step
gc.collect()
torch.npusim.synchronize()
torch.npusim.empty_cache()
assert live.value == torch.npusim.memory_allocated() == 0
free, total = torch.npusim.mem_get_info()
assert free == total
"""
    assert run_python(prelude + TRAINING + check) == plain_training


def test_a_pool_with_an_allocator(run_python, functions):
    run_python(f"""
        import ctypes, torch, torch_npusim
        mine = torch.npusim.memory.NPUSIMPluggableAllocator({functions!r}, "take", "give_back")
        library = ctypes.CDLL({functions!r})
        live = ctypes.c_int.in_dll(library, "live")
        stream = ctypes.c_int64.in_dll(library, "last_stream")
        pool = torch.npusim.MemPool(mine.allocator())
        outside = torch.ones(10, device="npusim")
        assert live.value == 0
        side = torch.npusim.Stream()
        with torch.npusim.use_mem_pool(pool), torch.npusim.stream(side):
            inside = torch.ones(10, device="npusim")
            again = torch.ones(10, device="npusim")
        assert live.value == 1, "the pool caches: one segment for both"
        assert stream.value == side.stream_id
        assert not pool.snapshot()[0]["is_expandable"]
        with torch.npusim.use_mem_pool(pool, 1):
            there = torch.ones(10, device="npusim:1")
        assert live.value == 2
        del pool, mine, again
        torch.npusim.empty_cache()
        assert live.value == 2
        torch.npusim.current_stream().wait_stream(side)
        assert inside.sum().item() == there.sum().item() == 10
        del inside, there
        torch.npusim.synchronize()
        torch.npusim.empty_cache()
        assert live.value == 0
    """)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        ("take_same", "which is in use"),
        ("take_host", "not memory of that device; get it from npusim_malloc()"),
        ("take_short", "not memory of that device"),
        ("take_other", "not memory of that device"),
    ],
)
def test_wrong_functions_are_errors(run_python, functions, function, text):
    run_python(f"""
        import torch, torch_npusim
        memory = torch.npusim.memory
        memory.change_current_allocator(
            memory.NPUSIMPluggableAllocator({functions!r}, {function!r}, "forget"))
        try:
            kept = [torch.ones(100000, device="npusim") for _ in range(2)]
        except RuntimeError as error:
            assert {text!r} in str(error), error
        else:
            raise AssertionError("accepted")
    """)


def test_out_of_memory_in_functions(run_python, functions):
    run_python(
        f"""
        import torch, torch_npusim
        memory = torch.npusim.memory
        memory.change_current_allocator(
            memory.NPUSIMPluggableAllocator({functions!r}, "take", "give_back"))
        kept = torch.ones(10 << 20, dtype=torch.uint8, device="npusim")
        try:
            torch.ones(60 << 20, dtype=torch.uint8, device="npusim")
        except torch.OutOfMemoryError as error:
            assert "The pluggable allocator has no memory." in str(error), error
        else:
            raise AssertionError("70 MiB do not fit")
        """,
        environment={"NPUSIM_DEVICE_MEMORY": "64MiB"},
    )


def test_the_allocator_changes_before_its_first_use_only(run_python):
    run_python("""
        import torch, torch_npusim
        change = torch.npusim.memory.change_current_allocator
        change("buddy")
        change("cuda-2.13,max_split_size_mb:64")
        x = torch.empty(100, device="npusim")
        assert torch.npusim.memory_allocated() == 512
        assert torch.npusim.get_allocator_backend() == "native"
        try:
            change("buddy")
        except RuntimeError as error:
            assert "in use already" in str(error), error
        else:
            raise AssertionError("accepted")
        try:
            change(7)
        except TypeError as error:
            assert "PluggableAllocator or a text, got 7" in str(error), error
        else:
            raise AssertionError("accepted")
    """)


def test_a_policy_in_python_is_refused_with_the_ways_that_there_are(run_python):
    run_python(
        """
        import torch, torch_npusim
        try:
            torch.empty(10, device="npusim")
        except ValueError as error:
            expected = "the policy /a/mine.py:Mine is in Python; replay a recording"
            assert expected in str(error), error
        else:
            raise AssertionError("accepted")
        """,
        environment={"NPUSIM_ALLOCATOR": "/a/mine.py:Mine"},
    )
