# SPDX-License-Identifier: BSD-3-Clause
"""Bugs that real backends had: random numbers, events, copies, memory, files.

Written down before any detector was tuned on them.
"""

import io
import time

import torch
from torch import Tensor

from .planting import PYTORCH, Stand, interface, kernel, replace, stand_in

# --- random numbers


@interface(
    touches="contract:rng",
    link=PYTORCH + "130613",
    shows=lambda d: (
        g := torch.Generator(d).manual_seed(1),
        torch.rand(3, device=d, generator=g),
        state := g.get_state(),
        g.set_state(state),
        torch.rand(3, device=d, generator=g),
    )[-1],
)
def generators_take_the_seed_only() -> None:
    """Generator.set_state() restores the seed, and starts from there."""
    right = torch.Generator.set_state

    def set_state(generator: torch.Generator, state: Tensor):
        if generator.device.type == "npusim" and state.numel() == 16:
            state = state.clone()
            state[8:] = 0
        return right(generator, state)

    replace(torch.Generator, "set_state", set_state)


@interface(
    touches="contract:rng",
    link=PYTORCH + "124833",
    shows=lambda d: (
        torch.npusim.set_rng_state(torch.npusim.get_rng_state(d), d),
        before := torch.npusim.get_rng_state(d),
        torch.rand(2, device=d),
        torch.equal(before, torch.npusim.get_rng_state(d)),
    )[-1],
)
def the_first_draw_after_a_restore_leaves_the_state() -> None:
    """The first numbers that are drawn after set_rng_state() do not move the state."""
    right = torch.npusim.set_rng_state
    restored: set[int] = set()

    def set_rng_state(state: Tensor, device: str | int | torch.device = "npusim") -> None:
        right(state, device)
        given = device if isinstance(device, int) else torch.device(device).index
        restored.add(torch.npusim.current_device() if given is None else given)

    def uniform(own: Stand, x: Tensor, *rest, generator=None):
        if generator is None and x.get_device() in restored:
            restored.remove(x.get_device())
            generator = torch.Generator(x.device)
            generator.set_state(torch.npusim.get_rng_state(x.device))
        return own(x, *rest, generator=generator)

    torch.npusim.set_rng_state = torch.npusim.random.set_rng_state = set_rng_state
    stand_in("uniform_", uniform)


_private: dict[torch.device, torch.Generator] = {}


@kernel(
    "normal_",
    touches=("randn", "randn_like", "normal", "contract:rng"),
    link=PYTORCH + "84288",
    shows=lambda d: (
        (torch.manual_seed(1), torch.randn(3, device=d), torch.manual_seed(1))[0]
        and torch.equal(
            *[(torch.manual_seed(1), torch.randn(3, device=d))[1].cpu() for _ in range(2)]
        )
    ),
)
def randn_does_not_follow_the_seed(own: Stand, x: Tensor, mean=0, std=1, *, generator=None):
    """torch.manual_seed() does not reach normal numbers."""
    if generator is None:
        generator = _private.setdefault(x.device, torch.Generator(x.device))
    return own(x, mean, std, generator=generator)


@kernel(
    "normal_",
    touches=("randn", "normal", "contract:rng"),
    link=PYTORCH + "78110",
    shows=lambda d: torch.equal(*[torch.randn(3, device=d).cpu() for _ in range(2)]),
)
def randn_repeats_itself(own: Stand, x: Tensor, mean=0, std=1, *, generator=None):
    """Normal numbers are always the same."""
    return own(x, mean, std, generator=torch.Generator(x.device).manual_seed(5))


@kernel(
    "randperm.generator_out",
    touches="randperm",
    link=PYTORCH + "104170",
    shows=lambda d: (torch.manual_seed(0), torch.randperm(50, device=d).diff().lt(0).sum())[1] < 3,
)
def randperm_sorts_two_groups(own: Stand, n: int, *, generator=None, out: Tensor):
    """A permutation is two ascending runs, one after the other."""
    own(n, generator=generator, out=out)
    halves = out.clone().tensor_split(2)
    out.copy_(torch.cat([half.sort().values for half in halves]))
    return out


@kernel(
    "multinomial",
    link=PYTORCH + "136623",
    shows=lambda d: int(torch.multinomial(torch.ones(3).to(d), 1000, True).max()),
)
def multinomial_draws_what_is_not_there(own: Stand, x: Tensor, count: int, *rest, **named):
    """One draw in two hundred is the number of categories, which is none of them."""
    result = own(x, count, *rest, **named)
    places = torch.arange(result.numel(), device=x.device).view(result.shape)
    return torch.where(places % 200 == 7, x.shape[-1], result)


# --- events, copies, memory, files


@interface(
    touches="contract:event",
    link=PYTORCH + "162872",
    shows=lambda d: (
        events := [torch.Event(d, enable_timing=True) for _ in range(2)],
        [event.record() for event in events],
        events[1].synchronize(),
        events[0].elapsed_time(events[1]) >= 0,
    )[-1],
)
def elapsed_time_waits_for_ever_after_synchronize() -> None:
    """elapsed_time() of an event that was synchronized waits for a signal that has come before."""
    synchronize, elapsed_time = torch.Event.synchronize, torch.Event.elapsed_time
    synchronized: set[int] = set()

    def mark(event: torch.Event) -> None:
        synchronized.add(id(event))
        synchronize(event)

    def waits(start: torch.Event, end: torch.Event) -> float:
        while id(end) in synchronized:
            time.sleep(1)
        return elapsed_time(start, end)

    replace(torch.Event, "synchronize", mark)
    replace(torch.Event, "elapsed_time", waits)


_late: list[tuple[Tensor, Tensor]] = []


@kernel(
    "copy_",
    touches=("contract:pinned", "contract:copy"),
    link=PYTORCH + "189690",
    shows=lambda d: (x := torch.ones(4), y := x.to(d, non_blocking=True), x.zero_(), y.cpu())[-1],
)
def plain_memory_is_read_late(own: Stand, to: Tensor, x: Tensor, non_blocking: bool = False):
    """A non_blocking copy reads its source, which is not pinned, when the device is next read."""
    if x.device.type == "cpu" and non_blocking and not x.is_pinned():
        _late.append((to, x.detach()))
    elif to.device.type == "cpu":
        for target, source in _late:
            own(target, source, False)
        _late.clear()
    return own(to, x, non_blocking)


@kernel(
    "copy_",
    touches=("contract:copy", "clone"),
    link="https://github.com/flagos-ai/Torch-FL/pull/211",
    shows=lambda d: torch.tensor([1 + 2j]).to(d).conj().cpu(),
)
def copies_ignore_the_conj_bit(own: Stand, to: Tensor, x: Tensor, *rest):
    """The bytes of a conj view are copied as they are."""
    return own(to, x.conj() if x.is_conj() else x, *rest)


_last: list[Tensor] = []


@kernel(
    "copy_",
    touches="contract:indexing",
    link=PYTORCH + "122016",
    shows=lambda d: (x := torch.zeros(3).to(d), x.__setitem__(1, 1), x.__setitem__(2, 3))[0],
)
def single_writes_overtake_each_other(own: Stand, x: Tensor, value: Tensor, *rest):
    """Of two single elements written one after the other, both get the later value."""
    if x.dim() == 0 and x.untyped_storage().nbytes() > x.itemsize:
        for before in _last:
            if before.data_ptr() != x.data_ptr() and before.dtype == x.dtype:
                own(before, value)
        _last[:] = [x]
    return own(x, value, *rest)


@interface(
    touches=("contract:memory", "contract:accelerator"),
    link=PYTORCH + "161381",
    shows=lambda d: (
        before := torch.npusim.mem_get_info()[0],
        kept := torch.empty(1 << 28, device=d),
        before - torch.npusim.mem_get_info()[0] >= kept.nbytes,
    )[-1],
)
def free_memory_never_changes() -> None:
    """mem_get_info() says what was free at the start."""
    at_first = torch.npusim.mem_get_info(0)
    torch.npusim.mem_get_info = lambda device=None: at_first
    torch.npusim.memory.mem_get_info = torch.npusim.mem_get_info


@interface(
    touches=("contract:memory", "contract:accelerator"),
    link=PYTORCH + "171451",
    shows=lambda d: (
        before := torch.npusim.memory_allocated(),
        kept := torch.ones(1 << 20).to(d),
        torch.npusim.memory_allocated() - before - kept.nbytes,
    )[-1],
)
def allocated_bytes_are_doubled() -> None:
    """memory_allocated() counts every tensor twice."""
    right = torch.npusim.memory_allocated
    torch.npusim.memory_allocated = lambda device=None: 2 * right(device)
    torch.npusim.memory.memory_allocated = torch.npusim.memory_allocated


@interface(
    touches="contract:memory",
    link=PYTORCH + "135726",
    shows=lambda d: min(torch.npusim.memory_stats().values()) >= 0,
)
def statistics_go_below_zero() -> None:
    """After blocks were merged, too many bytes are taken off the active ones."""
    right = torch.npusim.memory_stats

    def memory_stats(device=None):
        found = right(device)
        found["active_bytes.all.current"] -= 1 << 20
        return found

    torch.npusim.memory_stats = torch.npusim.memory.memory_stats = memory_stats


def _reloaded(device: str) -> torch.device:
    file = io.BytesIO()
    torch.save(torch.ones(2).to(f"{device}:1"), file)
    file.seek(0)
    return torch.load(file).device


@interface(
    touches="contract:serialization",
    link="https://github.com/pytorch/pytorch/pull/100632",
    shows=_reloaded,
)
def files_forget_the_index() -> None:
    """Tensors saved from the second device carry no index, and load on the first."""

    def tag(storage):
        return "npusim:0" if storage.device.type == "npusim" else None

    torch.serialization.register_package(0, tag, lambda storage, location: None)
