# SPDX-License-Identifier: BSD-3-Clause
"""Running out of device memory: the error, its text, and that everything works afterwards."""

import pytest
import torch


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
