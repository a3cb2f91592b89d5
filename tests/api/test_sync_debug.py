# SPDX-License-Identifier: BSD-3-Clause
"""set_sync_debug_mode: hidden waits of the host are reported."""

import warnings

import pytest
import torch

WAITS = {
    "item": lambda x: x[0].item(),
    "bool": lambda x: bool(x[0]),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 1],
    "to cpu": lambda x: x.cpu(),
    "tolist": lambda x: x.tolist(),
    "unpinned copy": lambda x: torch.ones(3).to("npusim"),
    "equal": lambda x: torch.equal(x, x),
}
NO_WAITS = {
    "add": lambda x: x + 1,
    "factory": lambda x: torch.zeros(3, device="npusim"),
    "device copy": lambda x: x.clone(),
    "matmul": lambda x: x @ x,
    "sum": lambda x: x.sum(),
    "pinned copy": lambda x: torch.ones(3).pin_memory().to("npusim", non_blocking=True),
    "explicit": lambda x: torch.npusim.synchronize(),
    "reshape": lambda x: x.reshape(3, 1).expand(3, 4).contiguous(),
}


@pytest.fixture
def x():
    return torch.arange(3.0, device="npusim")


@pytest.mark.parametrize("name", WAITS)
def test_a_wait_is_an_error_in_error_mode(name, x):
    torch.npusim.set_sync_debug_mode("error")
    with pytest.raises(RuntimeError, match="called a synchronizing npusim operation"):
        WAITS[name](x)
    torch.npusim.set_sync_debug_mode("default")
    WAITS[name](x)


@pytest.mark.parametrize("name", WAITS)
def test_a_wait_is_a_warning_in_warn_mode(name, x):
    torch.npusim.set_sync_debug_mode("warn")
    with pytest.warns(UserWarning, match="called a synchronizing npusim operation"):
        WAITS[name](x)


@pytest.mark.parametrize("name", NO_WAITS)
def test_what_does_not_wait_is_not_reported(name, x):
    torch.npusim.set_sync_debug_mode("error")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        NO_WAITS[name](x)


@pytest.mark.parametrize(("mode", "number"), [("default", 0), ("warn", 1), ("error", 2)])
def test_modes_have_names_and_numbers(mode, number):
    torch.npusim.set_sync_debug_mode(mode)
    assert torch.npusim.get_sync_debug_mode() == number
    torch.npusim.set_sync_debug_mode(number)
    assert torch.npusim.get_sync_debug_mode() == number


@pytest.mark.parametrize("mode", ["loud", 3, -1])
def test_wrong_modes_are_named(mode):
    with pytest.raises(RuntimeError, match="invalid value of debug_mode"):
        torch.npusim.set_sync_debug_mode(mode)
