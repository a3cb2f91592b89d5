# SPDX-License-Identifier: BSD-3-Clause
"""Initialisation happens on first use, once, and never in a child of a process that did it."""

import torch


def test_import_initialises_nothing(run_python):
    run_python("""
        import torch, torch_npusim
        assert not torch.npusim.is_initialized()
        assert torch.npusim._initialized is False
        assert torch.npusim.is_available() and torch.npusim.device_count() == 2
        assert torch.npusim.memory_stats() == {} and torch.npusim.memory_allocated() == 0
        torch.npusim.empty_cache()
        assert not torch.npusim.is_initialized()
        torch.ones(1, device="npusim")
        assert torch.npusim.is_initialized() and torch.npusim._initialized is True
    """)


def test_seeding_initialises_nothing(run_python):
    """Otherwise a program that seeds first could not fork workers that use the device."""
    run_python("""
        import torch, torch_npusim
        torch.manual_seed(1)
        torch.npusim.get_rng_state()
        assert not torch.npusim.is_initialized()
    """)


def test_init_is_idempotent():
    torch.npusim.init()
    torch.npusim.init()
    assert torch.npusim.is_initialized()
    assert torch.npusim._initialized


IN_A_CHILD = """
import os, sys, torch, torch_npusim
def in_a_child(work):
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            sys.stdout.flush()
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
"""


def test_a_forked_child_cannot_use_the_devices_of_its_parent(run_python):
    text = run_python(
        IN_A_CHILD
        + """
x = torch.ones(3, device="npusim")
def work():
    assert torch.npusim._is_in_bad_fork() and not torch.npusim.is_initialized()
    assert torch.npusim.is_available() and torch.npusim.device_count() == 2
    torch.manual_seed(3)
    refused = 0
    for use in [
        lambda: torch.empty(1, device="npusim"), lambda: x + 1, lambda: x.cpu(),
        torch.npusim.init, torch.npusim.current_device, torch.npusim.synchronize,
        lambda: torch.npusim.set_device(0), torch.npusim.current_stream, torch.npusim.Event,
        torch.npusim.mem_get_info, lambda: torch.npusim.get_rng_state(),
        torch.npusim.memory_summary, torch.npusim.reset_peak_memory_stats,
    ]:
        try:
            use()
        except RuntimeError as error:
            assert "spawn" in str(error), error
            refused += 1
    print(refused, "refused")
    global_names = globals()
    del global_names["x"]   # freeing is a no-op
in_a_child(work)
assert x.sum().item() == 3
print("the parent goes on")
"""
    )
    assert text.split("\n")[:2] == ["13 refused", "the parent goes on"]


def test_a_child_forked_before_first_use_has_devices_of_its_own(run_python):
    run_python(
        IN_A_CHILD
        + """
def work():
    assert not torch.npusim._is_in_bad_fork()
    assert torch.ones(3, device="npusim").sum().item() == 3
in_a_child(work)
assert not torch.npusim.is_initialized()
assert torch.ones(4, device="npusim").sum().item() == 4
"""
    )


def test_data_loader_workers_may_not_make_device_tensors(run_python):
    text = run_python("""
        import torch, torch_npusim
        torch.ones(1, device="npusim")
        class OnDevice(torch.utils.data.Dataset):
            def __len__(self): return 4
            def __getitem__(self, i): return torch.ones(1, device="npusim")
        loader = torch.utils.data.DataLoader(
            OnDevice(), num_workers=1, multiprocessing_context="fork")
        try:
            next(iter(loader))
        except RuntimeError as error:
            print("spawn" in str(error))
    """)
    assert text.strip() == "True"
