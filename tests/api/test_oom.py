# SPDX-License-Identifier: BSD-3-Clause
"""Running out of device memory: the error, its text, and that everything works afterwards."""

import pytest
import torch

from torch_npusim import _C


def test_out_of_memory_is_torchs_error_and_says_what_a_person_needs(run_python):
    text = run_python(
        """
        import torch, torch_npusim
        kept = [torch.empty(1 << 20, dtype=torch.uint8, device="npusim") for _ in range(40)]
        try:
            torch.empty(1 << 30, dtype=torch.uint8, device="npusim")
        except torch.OutOfMemoryError as error:
            print(error)
        del kept
        assert torch.ones(5, device="npusim").sum().item() == 5
        assert torch.npusim.memory_stats()["num_ooms"] == 1
        """,
        environment={"NPUSIM_DEVICE_MEMORY": "64MiB"},
    )
    for fact in ("Tried to allocate 1024.00 MiB", "1.00 GiB"):
        if fact in text:
            break
    else:
        pytest.fail(text)
    assert "64.00 MiB" in text
    assert "ragment" in text
    assert "largest free block" in text.lower()


def test_injected_out_of_memory_is_retried_then_reported(empty_device):
    from torch_npusim.sim import faults

    faults.arm("oom", probability=1.0)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(64 << 20, dtype=torch.uint8, device=empty_device)
    faults.clear()
    torch.empty(64 << 20, dtype=torch.uint8, device=empty_device)


def test_one_injected_failure_is_survived_by_a_retry(empty_device):
    from torch_npusim.sim import faults

    retries = torch.npusim.memory_stats()["num_alloc_retries"]
    with faults.inject("oom", nth=1):
        torch.empty(96 << 20, dtype=torch.uint8, device=empty_device)
    assert torch.npusim.memory_stats()["num_alloc_retries"] == retries + 1


CASES = {  # cause -> a program of 100 MiB, and its evidence
    "too large, however it is placed": (
        "kept = take(84); take(9)",  # 16 MiB are left, a segment has 20
        "84.00 MiB are in use, and 0 B were freed before",
    ),
    "a limit that the user set": (
        "torch.npusim.set_per_process_memory_fraction(0.5); kept = take(40); take(40)",
        "Torch may have 50.00 MiB of 100.00 MiB",
    ),
    "the peak of one step": (
        "kept = forward(60), forward(30); take(40)",
        "40.00 MiB are asked for beside 90.00 MiB in use: 90.00 MiB of activations",
    ),
    "a cache that another pool holds": (
        "pool = torch.npusim.MemPool(); pooled(pool); take(60)",
        "50.00 MiB are free in private pools, and 50.00 MiB elsewhere",
    ),
    "growth": ("leaks()", "take (<string>:5) keeps 2"),
    "fragmentation": (
        "kept = [take(9) for _ in range(10)]; del kept[::2]; take(40)",
        "55.00 MiB are free together, and the largest piece is 9.00 MiB",
    ),
}


def test_the_text_ends_in_a_cause_of_the_explanations_and_its_advice(run_python):
    from torch_npusim._causes import ADVICE

    text = run_python(
        f"""
        import torch, torch_npusim
        torch.npusim.memory._record_memory_history(stacks="python")
        def take(mib):
            return torch.empty(mib << 20, dtype=torch.uint8, device="npusim")
        forward = lambda mib: take(mib)
        forward.__code__ = forward.__code__.replace(co_name="forward")
        def pooled(pool):
            with torch.npusim.use_mem_pool(pool):
                take(50)
        def leaks():
            kept = []
            while True:
                for mib in (4, 1, 1, 1, 1, 1):
                    block = take(mib)
                    kept += [block] * (mib == 4)
        for case in {[case for case, _ in CASES.values()]}:
            try:
                exec(case, dict(globals()))
            except torch.OutOfMemoryError as error:
                print(error)
            torch.npusim.set_per_process_memory_fraction(1.0)
            torch.npusim.empty_cache()
            torch.npusim.reset_peak_memory_stats()
        """,
        environment={"NPUSIM_DEVICE_MEMORY": "100MiB", "NPUSIM_ALLOCATOR": "cuda-2.13"},
    )
    for line, (cause, (_, evidence)) in zip(text.splitlines(), CASES.items(), strict=True):
        assert f" Cause: {cause}. " in line, line
        assert evidence in line, line
        said = line.split(" Advice: ")[1]
        known = [advice.split("{holder}")[0] for advice in ADVICE[cause].values()]
        assert any(said.startswith(advice) for advice in known), said


def test_free_memory_of_another_stream_is_named(run_python):
    text = run_python(
        """
        import torch, torch_npusim
        def take(mib):
            return torch.empty(mib << 20, dtype=torch.uint8, device="npusim")
        with torch.Stream("npusim"):
            first, second = take(40), take(60)
            del first
            third = take(25)
        try:
            take(12)
        except torch.OutOfMemoryError as error:
            print(error)
        """,
        environment={"NPUSIM_DEVICE_MEMORY": "100MiB", "NPUSIM_ALLOCATOR": "cuda-2.13"},
    )
    assert "another pool holds. 15.00 MiB are free together, of another pool or stream. " in text
    assert "Advice: Use one stream" in text


def test_one_old_block_of_a_line_is_no_trend(run_python):
    text = run_python(
        """
        import torch, torch_npusim
        torch.npusim.memory._record_memory_history(stacks="python")
        def take(mib):
            return torch.empty(mib << 20, dtype=torch.uint8, device="npusim")
        kept = []
        try:
            for held, freed in ((1, 200), (10, 0)):
                for _ in range(held):
                    kept.append(take(9))
                for _ in range(freed):
                    take(1)
        except torch.OutOfMemoryError as error:
            print(error)
        """,
        environment={"NPUSIM_DEVICE_MEMORY": "100MiB", "NPUSIM_ALLOCATOR": "cuda-2.13"},
    )
    assert " Cause: " in text
    assert "growth" not in text


def test_observers_hear_of_the_device_and_the_bytes():
    asked = []
    _C.attach_out_of_memory_observer(lambda *numbers: asked.append(numbers))
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 50, dtype=torch.uint8, device="npusim:1")
    ((device, wanted, total, free),) = asked
    assert (device, wanted) == (1, 1 << 50)
    assert 0 < free <= total == torch.npusim.mem_get_info(1)[1]
