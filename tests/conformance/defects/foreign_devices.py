# SPDX-License-Identifier: BSD-3-Clause
"""Defects for any backend, of a style that npusim does not have: devices, generators, ends.

Written down before the contracts that find them. They know only the dispatcher
and torch.accelerator.
"""

import atexit
import os
import signal
import threading
from typing import Any

import torch
from torch import Tensor

from .planting import interface, replace


def _module(d: str = "") -> Any:
    return torch.get_device_module(d or torch.accelerator.current_accelerator())


def _in_thread(work: Any) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


# --- devices


@interface(
    touches=("contract:device", "contract:accelerator"),
    shows=lambda d: (_in_thread(lambda: _module(d).set_device(1)), _module(d).current_device())[-1],
)
def all_threads_share_the_current_device() -> None:
    """set_device() in one thread is set_device() in all."""
    module = _module()
    right, ask = module.set_device, module.current_device
    last = [ask()]

    def set_device(device: Any) -> None:
        right(device)
        last[0] = ask()

    def current_device() -> int:
        if ask() != last[0]:
            right(last[0])
        return ask()

    module.set_device, module.current_device = set_device, current_device


@interface(
    touches=("contract:device", "contract:accelerator"),
    shows=lambda d: (_module(d).set_device(1), torch.accelerator.current_device_index())[-1],
)
def two_modules_two_devices() -> None:
    """torch.accelerator does not see what set_device() of the module set."""
    torch._C._accelerator_getDeviceIndex = lambda: 0


@interface(touches="contract:device", shows=lambda d: _leaves(lambda: _module(d).device(1), d))
def errors_keep_the_device() -> None:
    """An error inside `with device()` leaves its device current."""
    kind = _module().device
    right = kind.__exit__

    def leave(self: Any, error: Any, *rest: Any) -> Any:
        return False if error is not None else right(self, error, *rest)

    kind.__exit__ = leave


def _leaves(context: Any, d: str) -> int:
    _module(d).set_device(0)
    try:
        with context():
            raise KeyError
    except KeyError:
        return _module(d).current_device()


@interface(touches="contract:device", shows=lambda d: _nested(d))
def inner_contexts_go_back_to_zero() -> None:
    """Leaving `with device()` makes the first device current, whichever was before."""
    module = _module()

    def leave(self: Any, *error: Any) -> bool:
        module.set_device(0)
        return False

    module.device.__exit__ = leave


def _nested(d: str) -> int:
    module = _module(d)
    with module.device(1):
        with module.device(0):
            pass
        return module.current_device()


@interface(touches=("contract:fork", "contract:device"), shows=lambda d: _child_says(d))
def children_have_no_devices() -> None:
    """After a fork, device_count() ends the child."""
    module, parent = _module(), os.getpid()
    right = module.device_count

    def device_count() -> int:
        if os.getpid() != parent:
            os.abort()
        return right()

    module.device_count = device_count


def _child_says(d: str) -> int:
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        _module(d).device_count()
        os._exit(0)
    return os.waitpid(child, 0)[1]


@interface(
    touches="contract:device",
    shows=lambda d: torch._C._accelerator_hooks_device_count() - _module(d).device_count(),
)
def one_device_is_hidden() -> None:
    """device_count() of the module is one less than the hooks' deviceCount()."""
    module = _module()
    right = module.device_count
    module.device_count = lambda: max(1, right() - 1)


# --- generators


@interface(
    touches="contract:rng",
    shows=lambda d: (
        state := _module(d).get_rng_state(1),
        _module(d).manual_seed_all(77),
        _module(d).set_rng_state(state, 1),
        torch.equal(_module(d).get_rng_state(1), state),
    )[-1],
)
def states_go_to_the_first_device() -> None:
    """set_rng_state() of any device sets the first device's."""
    module = _module()
    right = module.set_rng_state
    module.set_rng_state = lambda state, device=0: right(state, 0)


@interface(
    touches="contract:rng",
    shows=lambda d: (
        _module(d).manual_seed(1),
        torch.equal(_module(d).get_rng_state(0), _module(d).get_rng_state(1)),
    )[-1],
)
def states_come_from_the_first_device() -> None:
    """get_rng_state() of any device is the first device's."""
    module = _module()
    right = module.get_rng_state
    module.get_rng_state = lambda device=0: right(0)


@interface(
    touches="contract:rng",
    shows=lambda d: (
        g := torch.Generator(d).manual_seed(3),
        torch.Generator(d).manual_seed(4).set_state(g.get_state()).initial_seed(),
    )[-1],
)
def generators_keep_their_state() -> None:
    """Generator.set_state() does nothing."""
    right = torch.Generator.set_state

    def set_state(self: torch.Generator, state: Tensor) -> torch.Generator:
        return self if self.device.type != "cpu" else right(self, state)

    replace(torch.Generator, "set_state", set_state)


@interface(
    touches="contract:rng",
    shows=lambda d: (
        _module(d).manual_seed_all(5),
        torch.equal(_module(d).get_rng_state(0), _module(d).get_rng_state(1)),
    )[-1],
)
def seeding_all_seeds_one() -> None:
    """manual_seed_all() seeds the current device only."""
    module = _module()
    module.manual_seed_all = module.random.manual_seed_all = lambda seed: module.manual_seed(seed)


@interface(
    touches="contract:rng",
    shows=lambda d: (_module(d).manual_seed(2**33 + 7), _module(d).initial_seed())[-1],
)
def seeds_have_32_bits() -> None:
    """initial_seed() has lost the upper half of the seed."""
    module = _module()
    right = module.initial_seed
    module.initial_seed = lambda: right() & 0xFFFFFFFF


@interface(
    touches="contract:rng",
    shows=lambda d: (
        g := torch.Generator(d).manual_seed(3),
        state := g.get_state(),
        g.manual_seed(4),
        torch.equal(state, torch.Generator(d).manual_seed(3).get_state()),
    )[-1],
)
def states_are_no_copies() -> None:
    """A state that Generator.get_state() gave changes with the generator."""
    right, seed = torch.Generator.get_state, torch.Generator.manual_seed
    given: dict[int, list[Tensor]] = {}

    def get_state(self: torch.Generator) -> Tensor:
        state = right(self)
        if self.device.type != "cpu":
            given.setdefault(id(self), []).append(state)
        return state

    def manual_seed(self: torch.Generator, number: int) -> torch.Generator:
        seed(self, number)
        for state in given.get(id(self), []):
            state.copy_(right(self))
        return self

    replace(torch.Generator, "get_state", get_state)
    replace(torch.Generator, "manual_seed", manual_seed)


@interface(
    touches="contract:rng",
    shows=lambda d: _module(d).set_rng_state(torch.zeros(3, dtype=torch.uint8), 0),
)
def short_states_are_taken() -> None:
    """set_rng_state() takes a state of any size, and does nothing with it."""
    module = _module()
    right, size = module.set_rng_state, module.get_rng_state(0).numel()

    def set_rng_state(state: Tensor, device: Any = 0) -> None:
        if state.numel() == size:
            right(state, device)

    module.set_rng_state = set_rng_state


# --- streams and events


@interface(
    touches="contract:stream",
    shows=lambda d: (_enter(torch.Stream(d)), torch.accelerator.current_stream().stream_id)[-1],
)
def streams_stay_current() -> None:
    """A stream is current after its `with` has ended, too."""
    replace(torch.Stream, "__exit__", lambda self, *error: False)


def _enter(stream: torch.Stream) -> None:
    with stream:
        pass


@interface(touches="contract:event", shows=lambda d: _elapsed(d) >= 0)
def time_runs_backwards() -> None:
    """elapsed_time() of two events is negative."""
    right = torch.Event.elapsed_time
    replace(torch.Event, "elapsed_time", lambda self, end: -abs(right(self, end)) - 1)


def _elapsed(d: str) -> float:
    start, end = (torch.Event(d, enable_timing=True) for _ in range(2))
    start.record()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


# --- pinned memory, and the end of a process


@interface(touches="contract:pinned", shows=lambda d: torch.ones(3).pin_memory().is_pinned())
def nothing_is_pinned() -> None:
    """is_pinned() is False for pinned memory."""
    torch.Tensor.is_pinned = lambda self, *device: False


@interface(touches="contract:exit", shows=lambda d: os.waitpid(_ending(), 0)[1])
def the_end_is_a_crash() -> None:
    """The process ends by a signal when it has used the device."""
    atexit.register(lambda: os.kill(os.getpid(), signal.SIGSEGV))


def _ending() -> int:
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        atexit._run_exitfuncs()
        os._exit(0)
    return child


@interface(touches="contract:exit", shows=lambda d: os.waitpid(_ending(), 0)[1])
def the_end_has_another_status() -> None:
    """The process ends with status 7."""
    atexit.register(lambda: os._exit(7))
