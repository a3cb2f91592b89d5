# SPDX-License-Identifier: BSD-3-Clause
"""The other contracts again, under conditions in which they hold as well.

Each condition is asked of whole groups at once. A contract counts where it fails under the
condition and holds without it: what is broken everywhere is said by the contract itself.
"""

import dataclasses
from collections.abc import Collection, Iterable
from copy import copy

import torch

from npusim_conformance.contracts import (
    LEFT_OUT,
    Contract,
    contract,
    contracts,
    in_thread,
    other_device,
)
from npusim_conformance.contracts.stream import NO_CPU
from npusim_conformance.properties.base import Run
from npusim_conformance.verdict import Mismatch, NotApplicable

# Groups that compute, copy or look at memory, whichever device, stream or thread is current.
_DATA = "copy_on_write indexing numpy placement promotion serialization storage views".split()
_COPIES = ("conversion", "copy")
# Groups that ask for devices, streams, events, generators, pinned memory.
_PARTS = "accelerator device event order pinned rng second_device stream waiting".split()
# Asked once: what takes most of its group's time, and what ends the process of many a backend.
_ONCE = frozenset(
    "large_copies_arrive layouts_are_copied_right kinds_are_converted_on_the_way "
    "copies_between_devices elapsed_time_is_in_milliseconds events_keep_to_their_moment "
    "files_can_be_read_without_the_backend freed_pinned_memory_is_not_taken_too_early "
    "pinned_tensors_do_not_overlap every_byte_arrives_at_block_ends every_dtype_computes "
    "two_streams_take_turns later_event_implies_earlier integers_meet_fractions "
    "copies_to_the_device_do_not_lose_order blocking_copies_have_arrived elapsed_times_add_up "
    "conj_survives resize_grows set_reaches_beyond_its_storage conj_and_neg_views_come_back "
    "conj_and_neg_views_are_copied_there conj_and_neg_views_are_cloned conj_views_are_written_to "
    "force_resolves_conj items_of_conj_views_are_theirs".split()
)
# Contracts that expect their device to be current, and resize_(), of which second_device asks.
_OF_THE_CURRENT = frozenset(
    "copies_stay_on_their_device map_location_to_the_device "
    "resize_gives_memory_to_what_has_none".split()
)
Broken = dict[Contract, Exception]


def _error(one: Contract, run: Run) -> Exception | None:
    """The error of a contract, unless it does not concern the device."""
    try:
        one.check(run)
    except NotApplicable:
        return None
    except (RuntimeError, NotImplementedError) as error:
        return None if LEFT_OUT.search(str(error)) else error
    except Exception as error:
        return error
    finally:
        torch.set_default_device(None)
    return None


def _broken(
    run: Run,
    groups: Iterable[str],
    current: torch.device | None = None,
    without: Collection[str] = (),
) -> Broken:
    """The contracts of some groups that fail now, while one device is current."""
    wanted, found = set(groups), {}
    for one in contracts().values():
        if one.group not in wanted or not one.quick or one.name in _ONCE or one.name in without:
            continue
        if one.why_not(run.under_test):
            continue
        run.under_test.make_current(current or run.device)
        error = _error(one, run)
        if error is not None:
            found[one] = error.with_traceback(None)
    run.under_test.make_current(run.device)
    return found


def _only(condition: str, run: Run, broken: Broken) -> None:
    """Raises Mismatch where a contract that failed under a condition holds without it."""
    run.under_test.make_current(run.device)
    alone = {}
    for one, error in broken.items():
        if _error(one, run) is None:
            alone[f"{one.group}/{one.name}"] = error
        run.under_test.make_current(run.device)
    if alone:
        (name, error), *more = alone.items()
        others = f" (and {', '.join(other for other, _ in more[:3])})" if more else ""
        said = (str(error).strip() or type(error).__name__).splitlines()[0][:240]
        raise Mismatch(f"{condition}, {name} fails{others}: {said}", is_cause=True)


@contract(no_cpu=NO_CPU, two_devices=True, needs=("set_device", "current_device"))
def contracts_hold_on_the_second_device(run: Run) -> None:
    """Contracts of the first device hold of the second one, while that is current."""
    second, there = other_device(run), copy(run.under_test)
    there.device, there.second = second, run.device
    there.name = str(second)
    broken = _broken(dataclasses.replace(run, under_test=there), [*_DATA, *_COPIES, *_PARTS])
    _only(f"on {second}", run, broken)


@contract(no_cpu=NO_CPU, two_devices=True, needs=("set_device", "current_device"))
def contracts_hold_while_another_is_current(run: Run) -> None:
    """Copies, views, indexes and storages of one device work while another one is current."""
    second = other_device(run)
    broken = _broken(run, [*_DATA, *_COPIES], second, _OF_THE_CURRENT)
    _only(f"while {second} is current", run, broken)


@contract(no_cpu=NO_CPU)
def contracts_hold_in_another_thread(run: Run) -> None:
    """Contracts of the first thread hold in another one."""
    broken = in_thread(lambda: _broken(run, [*_DATA, *_COPIES, *_PARTS]))
    _only("in a thread of its own", run, broken)


@contract(no_cpu=NO_CPU)
def contracts_hold_on_a_side_stream(run: Run) -> None:
    """Copies, views, indexes and storages work while a side stream is current."""
    stream = torch.Stream(run.device)
    with stream:
        broken = _broken(run, [*_DATA, *_COPIES])
        stream.synchronize()
    _only("while a side stream is current", run, broken)
