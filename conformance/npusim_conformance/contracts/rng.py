# SPDX-License-Identifier: BSD-3-Clause
"""Random numbers: seeds, states and generators."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from npusim_conformance.contracts import contract, in_thread, other_device, refuses, same
from npusim_conformance.contracts.apart.script import ends_well, run_script
from npusim_conformance.properties.base import Run, require
from npusim_conformance.verdict import NotApplicable

_STATE = ("get_rng_state", "set_rng_state")
_DRAWN = 64
_CHANCES = 4000


def _draw(device: torch.device, generator: torch.Generator | None = None) -> torch.Tensor:
    return torch.rand(_DRAWN, device=device, generator=generator).cpu()


def _differ(what: str, one: torch.Tensor, other: torch.Tensor) -> None:
    require(not torch.equal(one, other), f"{what} are equal")


def _states(run: Run, device: torch.device | None = None) -> tuple[Any, Any]:
    """get_state() and set_state(state) of a device's default generator."""
    if run.under_test.is_cpu:
        return torch.get_rng_state, torch.set_rng_state
    # By index, as torch.random.fork_rng() asks.
    module, index = run.under_test.module, (device or run.device).index
    return lambda: module.get_rng_state(index), lambda state: module.set_rng_state(state, index)


@contract()
def manual_seed_repeats(run: Run) -> None:
    """torch.manual_seed(n) makes the device repeat itself, and another n gives other numbers."""
    torch.manual_seed(7)
    first, second = _draw(run.device), _draw(run.device)
    torch.manual_seed(7)
    same("numbers after the same seed", _draw(run.device), first)
    same("the numbers after them", _draw(run.device), second)
    torch.manual_seed(8)
    _differ("numbers after two seeds", _draw(run.device), first)
    _differ("two draws in a row", first, second)


@contract(no_cpu="torch.manual_seed() is the CPU's", needs=("manual_seed", "manual_seed_all"))
def module_seeds_repeat(run: Run) -> None:
    """The module's manual_seed() and manual_seed_all() make the device repeat itself."""
    module = run.under_test.module
    for seed in (module.manual_seed, module.manual_seed_all):
        seed(7)
        first = _draw(run.device)
        seed(7)
        same(f"numbers after the same {seed.__name__}()", _draw(run.device), first)
        seed(8)
        _differ(f"numbers after two seeds of {seed.__name__}()", _draw(run.device), first)


@contract()
def numbers_are_uniform(run: Run) -> None:
    """torch.rand() is in [0, 1) and as even as 4096 numbers can be."""
    torch.manual_seed(0)
    numbers = torch.rand(4096, device=run.device).cpu().double()
    require(bool(((numbers >= 0) & (numbers < 1)).all()), "numbers outside [0, 1)")
    mean, variance = float(numbers.mean()), float(numbers.var())
    require(abs(mean - 0.5) < 0.03, f"their mean is {mean}")  # more than six deviations
    require(abs(variance - 1 / 12) < 0.012, f"their variance is {variance}")
    require(len(set(numbers.tolist())) > 4000, "many of them are equal")


@contract(needs=_STATE)
def state_can_be_restored(run: Run) -> None:
    """set_rng_state(get_rng_state()) makes the device repeat itself."""
    get_state, set_state = _states(run)
    _draw(run.device)
    state = get_state()
    first, second = _draw(run.device), _draw(run.device)
    set_state(state)
    same("numbers after the state was restored", _draw(run.device), first)
    same("the numbers after them", _draw(run.device), second)


@contract(needs=_STATE)
def states_go_round(run: Run) -> None:
    """get_rng_state() gives what set_rng_state() was given, on each device, byte for byte."""
    devices = [device for device in (run.device, run.under_test.second) if device is not None]
    for device in devices:
        get_state, set_state = _states(run, device)
        run.under_test.seed(3)  # torch.manual_seed() asks more of a backend
        state = get_state().clone()
        run.under_test.seed(4)
        others = [_states(run, other)[0]() for other in devices if other != device]
        require(not torch.equal(get_state(), state), f"two seeds leave one state of {device}")
        set_state(state)
        same(f"the state of {device}", get_state(), state)
        now = [_states(run, other)[0]() for other in devices if other != device]
        for before, after in zip(others, now, strict=True):
            same(f"the other's state after {device}'s was set", after, before)


@contract(no_cpu="there is one CPU", two_devices=True, needs=(*_STATE, "manual_seed_all"))
def seeding_all_reaches_all(run: Run) -> None:
    """manual_seed_all() sets the state of each device; manual_seed() that of the current one."""
    module = run.under_test.module
    get_state, get_other = (_states(run, device)[0] for device in (run.device, other_device(run)))
    seen = []
    for seed in (5, 6, 5):
        module.manual_seed_all(seed)
        seen.append((get_state().clone(), get_other().clone()))
    for number, device in enumerate((run.device, run.under_test.second)):
        same(f"{device}'s state after the same seed", seen[2][number], seen[0][number])
        _differ(f"{device}'s states after two seeds", seen[1][number], seen[0][number])
    if run.under_test.has("manual_seed"):
        module.manual_seed(7)
        same("the other device's state after manual_seed()", get_other(), seen[0][1])
        _differ("states before and after manual_seed()", get_state(), seen[0][0])


@contract()
def states_of_generators_go_round(run: Run) -> None:
    """A generator gives the state that it was given; a state does not change with its generator."""
    generator = torch.Generator(run.device).manual_seed(3)
    state = generator.get_state()
    kept = state.clone()
    generator.manual_seed(4)
    same("a state after its generator was seeded", state, kept)
    _differ("states after two seeds", generator.get_state(), kept)
    generator.set_state(kept)
    same("the state after set_state()", generator.get_state(), kept)
    other = torch.Generator(run.device)
    other.set_state(kept)
    same("another generator's state", other.get_state(), kept)
    seed = 2**33 + 7
    same("initial_seed()", torch.Generator(run.device).manual_seed(seed).initial_seed(), seed)


@contract()
def clones_of_generators_are_their_own(run: Run) -> None:
    """Generator.clone_state() has the state of its original; seeding one leaves the other alone."""
    generator = torch.Generator(run.device).manual_seed(3)
    kept = generator.get_state().clone()
    clone = generator.clone_state()
    same("the clone's state", clone.get_state(), kept)
    clone.manual_seed(4)
    same("the original's state after its clone was seeded", generator.get_state(), kept)


@contract()
def generators_seed_themselves(run: Run) -> None:
    """Generator.seed() returns the seed that it takes, each time another."""
    generator = torch.Generator(run.device)
    first, state = generator.seed(), generator.get_state().clone()
    same("initial_seed()", generator.initial_seed(), first)
    require(generator.seed() != first, "two calls of seed() returned the same seed")
    _differ("states after two calls of seed()", generator.get_state(), state)


@contract(no_cpu="there is one CPU", two_devices=True)
def generators_name_their_device(run: Run) -> None:
    """A generator of the second device says so, and each device has a default generator."""
    for device in (run.device, other_device(run)):
        same(f"device of Generator({str(device)!r})", torch.Generator(device).device, device)


@contract(needs=_STATE)
def states_are_bytes_on_the_cpu(run: Run) -> None:
    """get_rng_state() is a uint8 tensor on the CPU."""
    state = _states(run)[0]()
    same("device", state.device.type, "cpu")
    same("dtype", state.dtype, torch.uint8)


@contract(needs=_STATE)
def drawing_changes_the_state(run: Run) -> None:
    """Drawing moves get_rng_state() on, and leaves a state that was asked for before."""
    get_state, _ = _states(run)
    state = get_state()
    kept = state.clone()
    _draw(run.device)
    same("the state kept", state, kept)
    _differ("states before and after drawing", get_state(), kept)


@contract(needs=_STATE)
def bad_states_are_refused(run: Run) -> None:
    """A state of a wrong size or dtype is refused, and changes nothing."""
    get_state, set_state = _states(run)
    torch.manual_seed(7)
    _draw(run.device)
    before = get_state()
    wrong = (RuntimeError, TypeError, ValueError)
    refuses("a state of 3 bytes", lambda: set_state(torch.zeros(3, dtype=torch.uint8)), wrong)
    refuses("a state of floats", lambda: set_state(torch.zeros(16)), wrong)
    same("the state after it", get_state(), before)


@contract(no_cpu="torch.initial_seed() is the CPU's", needs=("initial_seed", "manual_seed"))
def initial_seed_is_what_was_given(run: Run) -> None:
    """initial_seed() is the last seed."""
    seed = 2**33 + 7
    run.under_test.module.manual_seed(seed)
    same("initial_seed()", run.under_test.module.initial_seed(), seed)


@contract(no_cpu="torch.seed() is the CPU's", needs=("seed", "initial_seed"))
def seed_is_not_deterministic(run: Run) -> None:
    """seed() takes a seed that nobody foresees."""
    module = run.under_test.module
    seen = []
    for _ in range(2):
        torch.manual_seed(7)
        module.seed()
        seen.append(_draw(run.device))
    _differ("numbers after two calls of seed()", seen[0], seen[1])


@contract(needs=_STATE)
def fork_rng_restores(run: Run) -> None:
    """torch.random.fork_rng() restores the device's state, whatever its body draws."""
    get_state, _ = _states(run)
    before = get_state()
    devices = [] if run.under_test.is_cpu else [run.device.index]
    with torch.random.fork_rng(devices=devices, device_type=_fork_type(run)):
        torch.manual_seed(99)
        _draw(run.device)
    same("the state after it", get_state(), before)


def _fork_type(run: Run) -> str:
    return "cuda" if run.under_test.is_cpu else run.device.type  # the default of fork_rng()


@contract(no_cpu="it is the CPU's generator")
def drawing_leaves_the_cpu_alone(run: Run) -> None:
    """Numbers drawn on the device do not move the CPU's generator, and the other way round."""
    before = torch.get_rng_state()
    _draw(run.device)
    same("the CPU's state", torch.get_rng_state(), before)
    torch.manual_seed(7)
    first = _draw(run.device)
    torch.manual_seed(7)
    torch.rand(100)
    same("numbers after the CPU drew some", _draw(run.device), first)


@contract(no_cpu="there is one CPU", two_devices=True, needs=_STATE)
def devices_have_their_own(run: Run) -> None:
    """Drawing on one device does not move another's generator; manual_seed() seeds all."""
    module, second = run.under_test.module, other_device(run)
    before = module.get_rng_state(run.device.index)
    _draw(second)
    same("the first device's state", module.get_rng_state(run.device.index), before)
    torch.manual_seed(7)
    first = _draw(second)
    torch.manual_seed(7)
    _draw(run.device)
    same("numbers on the second device", _draw(second), first)


@contract(
    no_cpu="there is one CPU",
    two_devices=True,
    needs=("get_rng_state_all", "set_rng_state_all"),
)
def states_of_all_can_be_restored(run: Run) -> None:
    """set_rng_state_all(get_rng_state_all()) makes every device repeat itself."""
    module, devices = run.under_test.module, (run.device, other_device(run))
    states = module.get_rng_state_all()
    first = [_draw(device) for device in devices]
    module.set_rng_state_all(states)
    for device, numbers in zip(devices, first, strict=True):
        same(f"numbers on {device} after the states were restored", _draw(device), numbers)


@contract()
def generators_are_independent(run: Run) -> None:
    """torch.Generator(device) has a state of its own."""
    generator = torch.Generator(run.device)
    same("device", generator.device, run.device)
    same("manual_seed() returns it", generator.manual_seed(11) is generator, True)
    same("initial_seed()", generator.initial_seed(), 11)
    torch.manual_seed(5)
    default = _draw(run.device)
    first = _draw(run.device, generator)
    torch.manual_seed(5)
    _draw(run.device, generator)
    same("the default generator's numbers", _draw(run.device), default)
    generator.manual_seed(11)
    same("its numbers after its seed", _draw(run.device, generator), first)


@contract()
def generator_states_can_be_restored(run: Run) -> None:
    """get_state(), set_state() and clone_state() of a generator make it repeat itself."""
    generator = torch.Generator(run.device).manual_seed(3)
    _draw(run.device, generator)
    state = generator.get_state()
    same("device of the state", state.device.type, "cpu")
    first = _draw(run.device, generator)
    generator.set_state(state)
    same("numbers after set_state()", _draw(run.device, generator), first)
    other = torch.Generator(run.device)
    other.set_state(state)
    same("another generator's numbers", _draw(run.device, other), first)


@contract(no_cpu="it is the CPU's generator")
def generator_of_another_device_is_refused(run: Run) -> None:
    """A generator of the CPU is refused on the device, and the device's on the CPU."""
    refuses("a CPU generator on the device", lambda: _draw(run.device, torch.Generator()))
    there = torch.Generator(run.device)
    refuses("the device's generator on the CPU", lambda: torch.rand(2, generator=there))


@contract()
def generators_reach_every_distribution(run: Run) -> None:
    """Each way to draw takes generator= and repeats itself with it."""
    generator = torch.Generator(run.device)
    zeros = torch.zeros(_DRAWN).to(run.device)
    half = torch.full((_DRAWN,), 0.5).to(run.device)
    draws: dict[str, Callable[[], torch.Tensor]] = {
        "rand": lambda: torch.rand(_DRAWN, device=run.device, generator=generator),
        "randn": lambda: torch.randn(_DRAWN, device=run.device, generator=generator),
        "randint": lambda: torch.randint(1000, (_DRAWN,), device=run.device, generator=generator),
        "randperm": lambda: torch.randperm(_DRAWN, device=run.device, generator=generator),
        "bernoulli": lambda: torch.bernoulli(half, generator=generator),
        "normal_": lambda: zeros.clone().normal_(generator=generator),
        "uniform_": lambda: zeros.clone().uniform_(generator=generator),
        "exponential_": lambda: zeros.clone().exponential_(generator=generator),
        "random_": lambda: zeros.clone().random_(generator=generator),
        "multinomial": lambda: torch.multinomial(half, 8, generator=generator),
    }
    for name, draw in draws.items():
        generator.manual_seed(1)
        first = draw()
        second = draw()
        generator.manual_seed(1)
        same(f"{name} after the same seed", draw(), first)
        _differ(f"two draws of {name}", first.cpu(), second.cpu())


@contract()
def dropout_follows_the_seed(run: Run) -> None:
    """nn.Dropout draws from the device's generator and keeps about its share."""
    ones = torch.ones(1000).to(run.device)
    torch.manual_seed(4)
    first = torch.nn.functional.dropout(ones, 0.25).cpu()
    torch.manual_seed(4)
    same("dropout after the same seed", torch.nn.functional.dropout(ones, 0.25), first)
    kept = int((first != 0).sum())
    require(660 < kept < 840, f"{kept} of 1000 are kept with a probability of 0.75")


@contract()
def permutations_hold_each_number_once(run: Run) -> None:
    """randperm(n) has the numbers below n, each once, for short and long permutations."""
    for count in (1, 2, 17, 64, 1000, 70_001):
        drawn = torch.randperm(count, device=run.device).cpu()
        same(f"randperm({count}), sorted", drawn.sort()[0], torch.arange(count))


@contract()
def certain_draws_are_certain(run: Run) -> None:
    """Draws that have one possible outcome have that one, each time."""
    ones = torch.ones(5000).to(run.device)
    same("bernoulli_(1)", torch.zeros(5000).to(run.device).bernoulli_(1.0), torch.ones(5000))
    same("bernoulli_(0)", ones.clone().bernoulli_(0.0), torch.zeros(5000))
    same("bernoulli() of ones", torch.bernoulli(ones), torch.ones(5000))
    same("dropout(p=0)", torch.nn.functional.dropout(ones, 0.0), torch.ones(5000))
    same("dropout(p=1)", torch.nn.functional.dropout(ones, 1.0), torch.zeros(5000))
    numbers = torch.randint(7, 8, (5000,), device=run.device)
    same("randint(7, 8)", numbers, torch.full((5000,), 7))
    all_of_ten = torch.multinomial(ones[:10], 10).cpu().sort()[0]
    same("multinomial() of all, sorted", all_of_ten, torch.arange(10))


@contract()
def chances_hold_in_every_dtype(run: Run) -> None:
    """bernoulli_() of whole and of floating numbers keeps to a chance, as number and as tensor."""
    run.reseed()
    for dtype in (torch.float32, torch.int64, torch.uint8, torch.bool):
        for chance in (0.3, torch.tensor(0.3), torch.full((_CHANCES,), 0.3)):
            given = chance if isinstance(chance, float) else chance.to(run.device)
            drawn = torch.empty(_CHANCES, dtype=dtype, device=run.device).bernoulli_(given)
            found = drawn.cpu().double().mean().item()
            kind = "a number" if isinstance(chance, float) else f"a tensor {list(chance.shape)}"
            what = f"bernoulli_() of {dtype}, chance 0.3 as {kind}: {found} are set"
            require(abs(found - 0.3) < 0.05, what)


@contract()
def seeds_may_be_negative(run: Run) -> None:
    """A generator takes negative seeds and the largest ones, and tells them as torch does."""
    for seed in (0, -1, 2**63, 2**64 - 1):
        expected = torch.Generator().manual_seed(seed).initial_seed()
        made = torch.Generator(run.device).manual_seed(seed)
        same(f"initial_seed() after {seed}", made.initial_seed(), expected)


@contract()
def equal_seeds_are_equal_states(run: Run) -> None:
    """Two generators of one seed have one state, and new ones begin with the same seed."""
    one, other = torch.Generator(run.device), torch.Generator(run.device)
    same("initial_seed() of new ones", one.initial_seed(), torch.Generator().initial_seed())
    same("states of new ones", one.get_state(), other.get_state())
    one.manual_seed(5)
    _differ("states after one was seeded", one.get_state(), other.get_state())
    other.manual_seed(5)
    same("states after the same seed", one.get_state(), other.get_state())


@contract(needs=_STATE)
def states_are_copies(run: Run) -> None:
    """A state that is changed after it was given, or taken, changes no generator."""
    get_state, set_state = _states(run)
    run.under_test.seed(3)
    taken = get_state()
    kept = taken.clone()
    taken.fill_(0)
    same("the state after the one that was taken was changed", get_state(), kept)
    taken = get_state()
    run.under_test.seed(4)
    get_state()
    same("a state that was taken before a seed and another get_state()", taken, kept)
    given = kept.clone()
    set_state(given)
    given.fill_(0)
    same("the state after the one that was given was changed", get_state(), kept)


@contract(no_cpu="torch.get_rng_state() takes no device", needs=_STATE)
def states_take_a_device_by_any_name(run: Run) -> None:
    """get_rng_state() and set_rng_state() take an index, a name and a torch.device alike."""
    module = run.under_test.module
    run.under_test.seed(3)
    kept = module.get_rng_state(run.device.index).clone()
    for device in (run.device, run.under_test.second):
        if device is None:
            continue
        for name in (device.index, str(device), device):
            run.under_test.seed(4)  # both
            module.set_rng_state(kept, name)
            same(f"the state after set_rng_state(state, {name!r})",
                 module.get_rng_state(device.index), kept)  # fmt: skip
            same(f"get_rng_state({name!r})", module.get_rng_state(name), kept)


@contract(no_cpu="there is one CPU", two_devices=True)
def generators_of_both_devices_keep_their_seeds(run: Run) -> None:
    """Generators of two devices are seeded apart."""
    one, other = torch.Generator(run.device), torch.Generator(other_device(run))
    one.manual_seed(3)
    other.manual_seed(4)
    same("initial_seed()", (one.initial_seed(), other.initial_seed()), (3, 4))


@contract(no_cpu="there is one CPU", two_devices=True)
def clones_of_generators_stay_on_their_device(run: Run) -> None:
    """Generator.clone_state() of the second device's generator is the second device's."""
    other = torch.Generator(other_device(run)).manual_seed(4)
    clone = other.clone_state()
    same("device of the clone", clone.device, other.device)
    same("initial_seed() of the clone", clone.initial_seed(), 4)


@contract(
    no_cpu="torch.manual_seed() is the CPU's", needs=("_is_in_bad_fork", "manual_seed_all", *_STATE)
)
def torch_seeds_the_device(run: Run) -> None:
    """torch.manual_seed() and torch.seed() set the device's state, of each device."""
    module = run.under_test.module
    for device in (run.device, run.under_test.second):
        if device is None:
            continue
        seen = []
        for seed in (5, 6, 5):
            torch.manual_seed(seed)
            seen.append(module.get_rng_state(device.index).clone())
        same(f"{device}'s state after the same seed", seen[2], seen[0])
        _differ(f"{device}'s states after two seeds", seen[1], seen[0])
        torch.seed()
        _differ(f"{device}'s states before and after torch.seed()",
                module.get_rng_state(device.index), seen[2])  # fmt: skip


def _moved(generator: torch.Generator) -> torch.Tensor:
    """A state that has moved on from its seed.

    Where drawing does not move it, a state of the CPU's serves, if it is as long.
    """
    fresh = generator.get_state().clone()
    for draw in (torch.rand, torch.randn):
        try:
            draw(3, device=generator.device, generator=generator)
        except RuntimeError:
            break
    if not torch.equal(generator.get_state(), fresh):
        return generator.get_state().clone()
    other = torch.Generator().manual_seed(9)
    torch.randn(3, generator=other)
    if other.get_state().shape != fresh.shape:
        raise NotApplicable("drawing does not move the state of a generator")
    return other.get_state()


@contract()
def moved_states_go_round(run: Run) -> None:
    """A generator, and its clone, give back a state that has moved on from its seed."""
    state = _moved(torch.Generator(run.device).manual_seed(3))
    for seed in (3, 4):
        generator = torch.Generator(run.device).manual_seed(seed)
        generator.set_state(state)
        same(f"the state of a generator with seed {seed}", generator.get_state(), state)
        same("the state of its clone", generator.clone_state().get_state(), state)


@contract(no_cpu="there is one CPU", two_devices=True, needs=("manual_seed", "initial_seed"))
def seeds_are_of_the_current_device(run: Run) -> None:
    """manual_seed() and initial_seed() are the current device's, whichever it is."""
    module, second = run.under_test.module, other_device(run)
    seeds = {}
    try:
        for seed, device in ((11, run.device), (12, second)):
            run.under_test.make_current(device)
            module.manual_seed(seed)
        for device in (run.device, second):
            run.under_test.make_current(device)
            seeds[str(device)] = module.initial_seed()
    finally:
        run.under_test.make_current(run.device)
    same("initial_seed() by device", seeds, {str(run.device): 11, str(second): 12})


@contract(needs=("manual_seed_all", *_STATE))
def threads_share_the_default_generator(run: Run) -> None:
    """A device's default generator is one for all threads: its seed and its state."""
    get_state, _ = _states(run)
    seen = []
    for seed in (5, 6):
        run.under_test.seed(seed)
        seen.append(get_state().clone())
        same(f"the state in another thread after seed {seed} here", in_thread(get_state), seen[-1])
    in_thread(partial(run.under_test.seed, 5))
    same("the state here after another thread seeded", get_state(), seen[0])
    module = torch if run.under_test.is_cpu else run.under_test.module
    if hasattr(module, "initial_seed"):
        found = module.initial_seed(), in_thread(module.initial_seed)
        same("initial_seed() here and in another thread", found, (5, 5))


@contract()
def seeding_again_begins_again(run: Run) -> None:
    """A seed that a generator already has sets the state that it sets at first."""
    get_state, set_state = _states(run)
    run.under_test.seed(3)
    first = get_state().clone()
    set_state(_moved(torch.Generator(run.device).manual_seed(3)))
    run.under_test.seed(3)
    same("the state after the same seed again", get_state(), first)
    generator = torch.Generator(run.device).manual_seed(3)
    first = generator.get_state().clone()
    generator.set_state(_moved(generator))
    same("a generator's state", generator.manual_seed(3).get_state(), first)


@contract(quick=False, no_cpu="torch seeds the CPU itself", needs=("manual_seed_all", *_STATE))
def a_seed_before_the_first_use_counts(run: Run) -> None:
    """torch.manual_seed() in a process that has not used the device seeds each of its devices."""
    work = """
    module = getattr(torch, torch.device(device).type)
    torch.manual_seed(5)
    states = [module.get_rng_state(i).clone() for i in range(module.device_count())]
    torch.ones(2).to(device)
    module.manual_seed_all(5)
    expected = [module.get_rng_state(i) for i in range(module.device_count())]
    wrong = [i for i, (a, b) in enumerate(zip(states, expected)) if not torch.equal(a, b)]
    assert not wrong, f"other states after torch.manual_seed(5) before the first use: {wrong}"
    """
    ends_well(run_script(run.under_test, work, fresh=True))
