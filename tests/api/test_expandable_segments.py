# SPDX-License-Identifier: BSD-3-Clause
"""Expandable segments on the live device: growth in place, what is given back, running out."""

import textwrap

import pytest

EXPANDABLE = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}


@pytest.fixture
def run_expandable(run_python):
    """Runs a script in which memory is `allocate(megabytes)` and `MIB` is known."""
    prelude = "\n".join(
        (
            "import torch, torch_npusim",
            "MIB = 1 << 20",
            "def allocate(megabytes):",
            "    return torch.empty(megabytes * MIB, dtype=torch.uint8, device='npusim')",
            "",
        )
    )

    def run(script, memory="256MiB", **environment):
        variables = {**EXPANDABLE, "NPUSIM_DEVICE_MEMORY": memory, **environment}
        return run_python(prelude + textwrap.dedent(script), environment=variables)

    return run


def test_one_segment_grows(run_expandable):
    run_expandable("""
        first = allocate(30)
        (before,) = torch.npusim.memory_snapshot()
        second = allocate(50)
        (after,) = torch.npusim.memory_snapshot()
        assert before["is_expandable"] and after["is_expandable"]
        assert after["address"] == before["address"] == first.data_ptr()
        assert second.data_ptr() == first.data_ptr() + 30 * MIB
        assert after["total_size"] == torch.npusim.memory_reserved() == 80 * MIB
        free, total = torch.npusim.mem_get_info()
        assert total - free == 80 * MIB
        settings = torch.npusim.memory._snapshot()["allocator_settings"]
        assert settings["expandable_segments"] is True
    """)


def test_the_same_from_our_own_variable(run_python):
    run_python(
        """
        import torch, torch_npusim
        x = torch.empty(30 << 20, dtype=torch.uint8, device="npusim")
        (segment,) = torch.npusim.memory_snapshot()
        assert segment["is_expandable"]
        """,
        environment={"NPUSIM_ALLOCATOR": "cuda-2.13,expandable_segments:True"},
    )


def test_contents_survive_growth_and_neighbours_that_leave(run_expandable):
    run_expandable("""
        kept = [torch.full((20 * MIB,), i, dtype=torch.uint8, device="npusim") for i in range(6)]
        del kept[2:4]
        torch.npusim.empty_cache()
        runs = torch.npusim.memory_snapshot()
        assert [s["total_size"] for s in runs] == [40 * MIB, 40 * MIB]
        assert [s["address"] for s in runs] == [kept[0].data_ptr(), kept[2].data_ptr()]
        for tensor, value in zip(kept, (0, 1, 4, 5)):
            assert int(tensor.min()) == int(tensor.max()) == value
        hole = torch.zeros(40 * MIB, dtype=torch.uint8, device="npusim")
        assert hole.data_ptr() == kept[0].data_ptr() + 40 * MIB
        assert int(hole.max()) == 0
    """)


def test_pages_given_back_come_again_as_zeros(run_expandable):
    run_expandable("""
        x = torch.full((40 * MIB,), 7, dtype=torch.uint8, device="npusim")
        address = x.data_ptr()
        del x
        torch.npusim.empty_cache()
        assert torch.npusim.memory_reserved() == 0
        assert torch.npusim.memory_snapshot() == []
        y = allocate(40)
        assert y.data_ptr() == address
        assert int(y.max()) == 0
    """)


def test_what_runs_out_of_memory_without(run_expandable):
    script = """
        kept = []
        try:
            for size in (40, 60, 80, 100):
                allocate(size)
                kept.append(allocate(2))
        except torch.OutOfMemoryError:
            pass
        stats = torch.npusim.memory_stats()
        print(len(kept), stats["num_alloc_retries"], stats["num_ooms"])
    """
    assert run_expandable(script, memory="128MiB") == "4 0 0\n"
    assert run_expandable(script, memory="128MiB", PYTORCH_ALLOC_CONF="") == "3 2 1\n"


def test_running_out_and_going_on(run_expandable):
    run_expandable(
        """
        kept = allocate(40)
        try:
            allocate(100)
        except torch.OutOfMemoryError as error:
            assert "Tried to allocate 100.00 MiB" in str(error), error
            assert "total capacity of 128.00 MiB" in str(error), error
        else:
            raise AssertionError("100 MiB do not fit")
        assert torch.npusim.memory_stats()["num_ooms"] == 1
        allocate(80)
        assert torch.npusim.memory_allocated() == 40 * MIB
        """,
        memory="128MiB",
    )


def test_faults_and_poison(run_expandable):
    run_expandable(
        """
        from torch_npusim.sim import faults
        kept = allocate(20)
        assert int(kept[0]) == int(kept[-1]) == 0xD0
        with faults.inject("oom", nth=1) as counted:
            again = allocate(20)  # the second attempt, after everything free was given back
        assert torch.npusim.memory_stats()["num_alloc_retries"] == 1
        assert again.data_ptr() == kept.data_ptr() + 20 * MIB
        """,
        NPUSIM_POISON="all",
    )


def test_every_stream_and_pool_has_a_segment_of_its_own(run_expandable):
    run_expandable(
        """
        streams = [torch.npusim.Stream() for _ in range(10)]
        pool = torch.npusim.MemPool()
        kept = [allocate(2)]
        for stream in streams:
            with torch.npusim.stream(stream):
                kept += [allocate(2), torch.ones(8, device="npusim")]
        with torch.npusim.use_mem_pool(pool):
            kept.append(allocate(2))
        segments = torch.npusim.memory_snapshot()
        assert len(segments) == 1 + 2 * len(streams) + 1
        assert all(s["is_expandable"] for s in segments)
        assert [s["segment_pool_id"] for s in pool.snapshot()] == [pool.id]
        assert pool.snapshot()[0]["address"] == kept[-1].data_ptr()
        kept.clear()
        del pool
        torch.npusim.synchronize()
        torch.npusim.empty_cache()
        assert torch.npusim.memory_reserved() == 0
        """,
        memory="1GiB",
    )


def test_training_gives_the_same_bits(run_expandable):
    script = """
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 8)).to("npusim")
        optimizer = torch.optim.AdamW(model.parameters())
        for step in range(4):
            loss = model(torch.randn(16 + step, 64, device="npusim")).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            torch.npusim.empty_cache()
        print(loss.item().hex(), sum(p.sum() for p in model.parameters()).item().hex())
    """
    plain = run_expandable(script, PYTORCH_ALLOC_CONF="")
    assert run_expandable(script) == plain


def test_a_limited_address_space_says_what_to_do(run_python):
    failed = run_python(
        """
        import resource, torch
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (900 << 20), used + (900 << 20)))
        import torch_npusim
        torch.empty(30 << 20, dtype=torch.uint8, device="npusim")
        """,
        environment={
            **EXPANDABLE,
            "NPUSIM_DEVICE_MEMORY": "128MiB",
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        },
        check=False,
    )
    assert "No free range of addresses is 160.00 MiB long; raise ulimit -v" in failed.stderr
