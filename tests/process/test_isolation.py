# SPDX-License-Identifier: BSD-3-Clause
"""Host code and device memory: a read through a device pointer faults (rule M2)."""

import signal

import pytest

HOST_ACCESS = """
    import ctypes
    import torch, torch_npusim
    x = torch.arange(4, dtype=torch.int32, device="npusim")
    address = x.data_ptr()
    print("before", flush=True)
    {access}
    print("after", x.tolist(), flush=True)
"""
ACCESSES = {
    "read": "print(ctypes.c_int32.from_address(address + 4).value, flush=True)",
    "write": "ctypes.c_int32.from_address(address).value = 9",
    "memmove": "ctypes.memmove(address, b'abcd' * 4, 16)",
}


@pytest.mark.parametrize("name", ACCESSES)
def test_host_access_to_a_device_address_dies(run_script, name):
    done = run_script(HOST_ACCESS.format(access=ACCESSES[name]))
    assert done.returncode == -signal.SIGSEGV
    assert done.stdout == "before\n"


def test_without_isolation_the_host_may_read_and_write(run_script):
    for name, expected in (("read", [0, 1, 2, 3]), ("write", [9, 1, 2, 3])):
        script = HOST_ACCESS.format(access=ACCESSES[name])
        done = run_script(script, environment={"NPUSIM_ISOLATION": "0"})
        assert done.returncode == 0, done.stderr
        assert done.stdout.endswith(f"after {expected}\n")


def test_freed_memory_is_not_readable_either(run_script):
    done = run_script(
        """
        import ctypes
        import torch, torch_npusim
        address = torch.ones(4, device="npusim").data_ptr()
        torch.npusim.empty_cache()
        ctypes.c_int32.from_address(address).value
        """
    )
    assert done.returncode == -signal.SIGSEGV


def test_numpy_and_other_host_users_are_told_instead(run_script):
    """Accesses that torch can see are refused with words."""
    done = run_script(
        """
        import torch, torch_npusim
        x = torch.ones(4, device="npusim")
        for use in (lambda: x.numpy(), lambda: memoryview(x.untyped_storage())):
            try:
                use()
            except TypeError as error:
                print(type(error).__name__)
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["TypeError", "TypeError"]
