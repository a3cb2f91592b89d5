# SPDX-License-Identifier: BSD-3-Clause
"""set_sync_debug_mode: hidden waits of the host are reported."""

import warnings

import pytest
import torch

from torch_npusim.sim.synchronisation import in_words, record, set_level

WAITS = {
    "item": lambda x: x[0].item(),
    "bool": lambda x: bool(x[0]),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 1],
    "to cpu": lambda x: x.cpu(),
    "tolist": lambda x: x.tolist(),
    "unpinned copy": lambda x: torch.ones(3).to("npusim"),
    "equal": lambda x: torch.equal(x, x),
    "unique": lambda x: x.unique(),
    "masked_select": lambda x: x.masked_select(x > 1),
    "print": lambda x: repr(x),
    "format": lambda x: f"{x[0]:.2f}",
    "data of the host": lambda x: torch.tensor([1, 2], device="npusim"),
    "Stream.synchronize": lambda x: torch.npusim.current_stream().synchronize(),
    "eigh": lambda x: torch.linalg.eigh(torch.outer(x, x)),
    "svdvals": lambda x: torch.linalg.svdvals(torch.outer(x, x)),
    "inv": lambda x: torch.linalg.inv(torch.eye(3, device="npusim")),
    "to_sparse": lambda x: x.to_sparse(),
    "to_sparse_csr": lambda x: torch.eye(3, device="npusim").to_sparse_csr(),
    # The following, and their like below, are what torch's own tests expect of CUDA.
    "put under a mask": lambda x: x.index_put_((x > 0,), x[:2].clone()),
    "put at host indices": lambda x: x.index_put_((torch.tensor([1, 2]),), x[0].clone()),
    "read at host indices": lambda x: x[torch.tensor([1, 2])],
    "histogram without a range": lambda x: x.histc(3),
    "histogram of integers without a range": lambda x: x.long().histc(3),
    "branch": lambda x: 1 if x[0] else 2,
    "one_hot without a size": lambda x: torch.nn.functional.one_hot(x.long()),
    "repeats without a size": lambda x: torch.repeat_interleave(x, x.long()),
}
# torch.cuda's mode does not look at the memory of such copies; the strict level does.
PAGEABLE = {
    "to the device": lambda x: torch.ones(3).to("npusim", non_blocking=True),
    "to the host": lambda x: torch.empty(3).copy_(x, non_blocking=True),
}
NO_WAITS = {
    **PAGEABLE,
    "add": lambda x: x + 1,
    "factory": lambda x: torch.zeros(3, device="npusim"),
    "device copy": lambda x: x.clone(),
    "matmul": lambda x: x @ x,
    "histogram": lambda x: x.histc(3, min=0, max=9),
    "sum": lambda x: x.sum(),
    "pinned copy": lambda x: torch.ones(3).pin_memory().to("npusim", non_blocking=True),
    "explicit": lambda x: torch.npusim.synchronize(),
    "event": lambda x: torch.npusim.current_stream().record_event().synchronize(),
    "one value under a mask": lambda x: x.index_put_((x > 1,), x[0].clone()),
    "assignment under a mask": lambda x: x.__setitem__(x > 1, 1.0),
    "put at indices": lambda x: x.index_put_((x.long(),), x[0].clone()),
    "read at indices": lambda x: x[x.long()],
    "read under a host mask": lambda x: x[torch.tensor([True, False, True])],
    "put under a host mask": lambda x: x.index_put_(
        (torch.tensor([True, False, True]),), x[0].clone()
    ),
    "one_hot": lambda x: torch.nn.functional.one_hot(x.long(), num_classes=3),
    "randperm": lambda x: torch.randperm(20000, device="npusim"),
    "repeats": lambda x: torch.repeat_interleave(x, 2, output_size=6),
    "repeats of known size": lambda x: torch.repeat_interleave(x, x.long(), output_size=3),
    "qr": lambda x: torch.linalg.qr(torch.outer(x, x)),
    "inv_ex": lambda x: torch.linalg.inv_ex(torch.outer(x, x)),
    "multinomial": lambda x: torch.multinomial(x, 2),
    "any": lambda x: torch.any(x),
    "clip_grad_norm_": lambda x: torch.nn.utils.clip_grad_norm_([x.clone().requires_grad_()], 1.0),
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


@pytest.fixture
def level():
    yield set_level
    set_level("cuda")


@pytest.mark.parametrize("name", {**WAITS, **PAGEABLE})
def test_the_strict_level_also_reports_copies_that_are_not_to_block(name, x, level):
    level("strict")
    torch.npusim.set_sync_debug_mode("error")
    with pytest.raises(RuntimeError, match="called a synchronizing npusim operation"):
        ({**WAITS, **PAGEABLE})[name](x)


class Bounds(torch.nn.Module):
    """A module that moves tensors of its own, as constraints and metrics do."""

    def __init__(self):
        super().__init__()
        self.bounds = torch.zeros(2), torch.ones(2)

    def _apply(self, function):
        self.bounds = tuple(map(function, self.bounds))
        return super()._apply(function)


ASKED = {
    "to cpu": lambda x: x.cpu(),
    "tolist": lambda x: x.tolist(),
    "Stream.synchronize": lambda x: torch.npusim.current_stream().synchronize(),
    "Module.to": lambda x: torch.nn.Linear(2, 2).to("npusim"),
    "Module.npusim": lambda x: torch.nn.Linear(2, 2).npusim(),
    "Module.to, _apply": lambda x: Bounds().to("npusim"),
    "Module.npusim, _apply": lambda x: Bounds().npusim(),
    "load_state_dict": lambda x: torch.nn.Linear(2, 2, device="npusim").load_state_dict(
        torch.nn.Linear(2, 2).state_dict()
    ),
    **PAGEABLE,
}


@pytest.mark.parametrize("name", {**WAITS, **ASKED})
def test_the_hidden_level_reports_what_nobody_asked_for(name, x, level):
    level("hidden")
    torch.npusim.set_sync_debug_mode("error")
    if name in ASKED:
        ASKED[name](x)
        return
    with pytest.raises(RuntimeError, match="called a synchronizing npusim operation"):
        WAITS[name](x)


def test_a_wrong_level_is_named():
    with pytest.raises(ValueError, match="cuda, hidden, strict; got 'loud'"):
        set_level("loud")


SAYS = {
    "item": r"\.item\(\).*waits for a value.*\(aten::_local_scalar_dense\)",
    "mask": r"x\[mask\].*torch\.where.*\(aten::index\.Tensor\)",
    "nonzero": r"nonzero\(\).*nonzero_static",
    "repeats without a size": "pass output_size",
    "unpinned copy": r"pin_memory\(\) and non_blocking=True",
    "print": "printing a tensor",
}


@pytest.mark.parametrize("name", SAYS)
def test_the_message_says_what_waits_and_what_does_not(name, x):
    torch.npusim.set_sync_debug_mode("error")
    with pytest.raises(RuntimeError, match=SAYS[name]):
        WAITS[name](x)


@pytest.mark.parametrize("name", WAITS)
def test_every_wait_has_words(name, x):
    with record() as recording:
        WAITS[name](x)
    for sync in recording.counts():
        assert in_words(sync.what).endswith(f"({sync.what})")


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
