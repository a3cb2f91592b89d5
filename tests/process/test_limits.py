# SPDX-License-Identifier: BSD-3-Clause
"""Memory that runs out: the device's capacity, and what the host can back. Never a kill."""

import re

import expecttest

GIB = 1 << 30


def test_out_of_device_memory_says_what_a_person_needs(run_script):
    done = run_script(
        """
        import torch, torch_npusim
        kept = [torch.empty(1 << 20, dtype=torch.uint8, device="npusim") for _ in range(40)]
        del kept[::2]
        try:
            torch.empty(48 << 20, dtype=torch.uint8, device="npusim")
        except torch.OutOfMemoryError as error:
            print(error)
        """,
        environment={"NPUSIM_DEVICE_MEMORY": "64MiB"},
    )
    assert done.returncode == 0, done.stderr
    expecttest.assert_expected_inline(
        done.stdout.rstrip().replace(". ", ".\n").replace(", and ", ",\nand ").replace("; ", ";\n"),
        """\
NPUSIM out of memory.
Tried to allocate 48.00 MiB.
NPUSIM 0 has a total capacity of 64.00 MiB of which 24.00 MiB is free.
Of the allocated memory 20.00 MiB is allocated by PyTorch,
and 20.00 MiB is reserved by PyTorch but unallocated.
Of that, the largest free block is 1024.00 KiB (fragmentation 95.0 %).
Cause: the peak of one step.
48.00 MiB are asked for beside 20.00 MiB in use.
Advice: Go through what is asked for in chunks: alone it is a quarter of the device or more.
Free or offload what is held beside and not needed;
go through the rest in chunks or smaller batches;
gather results on the host.
npusim-lab explain tells more of a snapshot with history.""",
    )


def test_after_running_out_everything_works(run_script):
    done = run_script(
        """
        import gc
        import torch, torch_npusim
        x = torch.ones(5, device="npusim", requires_grad=True)
        for _ in range(3):
            for run in (
                lambda: torch.empty(1 << 30, device="npusim"),
                lambda: torch.ones(1 << 20, device="npusim").expand(100, -1).cumsum(0),
                lambda: torch.empty(0, device="npusim").resize_(1 << 28),
                lambda: torch.ones(1 << 22, device="npusim").repeat(8).exp(),
            ):
                try:
                    run()
                    print("no error")
                except torch.OutOfMemoryError:
                    pass
        gc.collect()
        assert torch.npusim.memory_allocated() == 32, torch.npusim.memory_allocated()
        (x * 2).sum().backward()
        assert x.grad.tolist() == [2.0] * 5
        torch.empty(60 << 20, dtype=torch.uint8, device="npusim")
        torch.empty(60 << 20, dtype=torch.uint8, device="npusim:1")
        """,
        environment={"NPUSIM_DEVICE_MEMORY": "64MiB"},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_capacity_is_what_the_environment_says(run_script):
    script = """
        import torch, torch_npusim
        print(torch.npusim.get_device_properties(0).total_memory, torch.npusim.mem_get_info()[1])
    """
    for text, size in (("100MiB", 100 << 20), ("3GiB", 3 << 30), ("1TiB", 1 << 40)):
        done = run_script(script, environment={"NPUSIM_DEVICE_MEMORY": text})
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == [str(size)] * 2
    refused = run_script(script, environment={"NPUSIM_DEVICE_MEMORY": "much"})
    assert refused.returncode == 1
    assert re.search(r"NPUSIM_DEVICE_MEMORY.*much", refused.stderr)


def test_a_device_larger_than_the_host_is_sparse(run_script):
    """Rule M5: what is not touched costs nothing; what the host cannot back is refused."""
    done = run_script(
        """
        import torch, torch_npusim
        x = torch.empty(1 << 30, dtype=torch.uint8, device="npusim")
        x[-1] = 7
        assert x[-1].item() == 7
        try:
            torch.empty(1 << 39, dtype=torch.uint8, device="npusim")
        except torch.OutOfMemoryError as error:
            print(error)
        assert x[-1].item() == 7
        """,
        environment={"NPUSIM_DEVICE_MEMORY": "1TiB"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "Tried to allocate 512.00 GiB" in done.stdout
    assert re.search(r"host", done.stdout), done.stdout


USES_THE_DEVICE = f"""
    import resource
    from pathlib import Path
    import torch
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    room = pages * resource.getpagesize() + {7 * GIB}  # a build for CUDA has large libraries
    resource.setrlimit(resource.RLIMIT_AS, (room, room))
    import torch_npusim
    from torch_npusim.sim import knobs
    try:
        x = torch.ones(1 << 20, device="npusim")
    except torch.OutOfMemoryError as error:
        print(error)
    else:
        assert x.sum().item() == 1 << 20
        print(knobs.memory_backing())
    assert torch.ones(1 << 20).sum().item() == 1 << 20
"""


def test_an_address_space_too_small_for_the_devices_is_a_clear_error(run_script):
    """Rule M7, as under `ulimit -v`."""
    done = run_script(USES_THE_DEVICE)
    assert (done.returncode, done.stderr) == (0, "")
    assert "cannot reserve address space for 2 device(s) of 16.00 GiB" in done.stdout
    for remedy in ("NPUSIM_DEVICE_MEMORY", "NPUSIM_DEVICE_COUNT", "ulimit -v unlimited"):
        assert remedy in done.stdout


def test_smaller_devices_fit_into_a_small_address_space(run_script):
    """Rule M7."""
    done = run_script(
        USES_THE_DEVICE,
        environment={"NPUSIM_DEVICE_MEMORY": "512MiB"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(", isolated\n")


def test_one_view_without_isolation_comes_with_a_warning(run_script):
    """Rule M7: room for one view of the memory, not for two."""
    done = run_script(
        USES_THE_DEVICE,
        environment={"NPUSIM_DEVICE_MEMORY": "5GiB", "NPUSIM_DEVICE_COUNT": "1"},
    )
    assert done.returncode == 0
    assert done.stdout.startswith("single mapping (no isolation)")
    assert re.search(r"(?i)warning|npusim", done.stderr)
