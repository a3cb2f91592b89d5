# SPDX-License-Identifier: BSD-3-Clause
"""The device's side of the pytest plugin: what each test needs, uses and leaves.

torch_npusim_entry_points.pytest_checks has the hooks and calls this module once torch_npusim is
loaded. Leaks are told by the numbers of allocations: a test answers for those made while it ran, a
fixture of a wider scope for those of its setup, and for what tests leave in it.
"""

import gc
import os
import re
import sys
import unittest
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from fnmatch import fnmatch
from functools import lru_cache
from typing import Any

import pytest
import torch

from torch_npusim import _C, npusim
from torch_npusim._blame import file_line, to_blame
from torch_npusim._text import format_bytes
from torch_npusim.inductor.uncompiled import Watch
from torch_npusim.sim import dry, rules, synchronisation
from torch_npusim.sim.synchronisation import Allowance, HostSync
from torch_npusim.sim.timeline import Timeline, record
from torch_npusim.testing import leaks
from torch_npusim.testing._reach import addresses_reached_from
from torch_npusim.testing.launches import too_many_launches
from torch_npusim.testing.leaks import LiveBlock
from torch_npusim_common.pytest_settings import Settings, parse_bytes

_SHOWING = os.path.join("_pytest", "_io", "saferepr.py")
_MODES = {"warn": 1, "error": 2, "strict": 2}
_WORDS_OF_WAITS = ("printing", "synchronize", "Stream.synchronize", "Event.synchronize")
# The frameworks compare and print on behalf of the test.
_FRAMEWORKS = tuple(
    os.path.join(os.path.dirname(str(module.__file__)), "*") for module in (pytest, unittest)
)
_FRAMEWORKS += (os.path.join(os.path.dirname(os.path.dirname(pytest.__file__)), "_pytest", "*"),)


def adapt_loaded_device(wanted: Mapping[str, str]) -> str | None:
    """Gives a device that is loaded already what can still be given; returns what cannot.

    Called while the environment is still the one in which it was loaded.
    """
    in_effect = {knob["name"]: knob["value"] for knob in _C.knobs()}
    if memory := in_effect["NPUSIM_DEVICE_MEMORY"]:
        in_effect["NPUSIM_DEVICE_MEMORY"] = str(parse_bytes(memory))
    for name in ("NPUSIM_DEVICE_COUNT", "NPUSIM_DEVICE_MEMORY"):
        if name in wanted and wanted[name] != in_effect[name]:
            return (
                f"npusim: torch_npusim was loaded before pytest read its options, with {name}="
                f"{in_effect[name]}, and {wanted[name]} is wanted; set {name} in the environment, "
                f"or find the pytest plugin that imports torch (pytest --trace-config lists them)"
            )
    if "NPUSIM_STRICT_ALIGN" in wanted:
        _C.set_strict_align(wanted["NPUSIM_STRICT_ALIGN"])
    if "NPUSIM_RACES" in wanted:
        npusim.set_race_detection(wanted["NPUSIM_RACES"])
    if "NPUSIM_DEVICE_ASSERT" in wanted:
        _C.set_device_assert(wanted["NPUSIM_DEVICE_ASSERT"])
    if "NPUSIM_DRY_RUN" in wanted:
        npusim.init()
        if not dry.active():
            dry.begin()
    if "NPUSIM_AS_CUDA" in wanted:
        from torch_npusim import cuda_alias

        cuda_alias.enable()
    return None


class Session:
    """A run of tests: which allocations belong to fixtures that live on."""

    def __init__(self, settings: Settings) -> None:
        rules.allow_cpu_kernels(*settings.cpu_kernels_allow)
        self._owned: dict[int, _Owned] = {}  # by id of the fixture definition
        self._finished: list[_Owned] = []  # since the last test

    def mark(self) -> int:
        """Returns the number of the newest allocation."""
        return leaks.mark()

    def watch(self, settings: Settings, item: pytest.Item) -> "TestWatch":
        """Returns the watch over one test."""
        return TestWatch(self, settings, item)

    def fixture_was_set_up(self, fixturedef: pytest.FixtureDef[Any], since: int) -> None:
        """Notes that the allocations since `since` are those of a fixture that lives on."""
        owned = self._owned.setdefault(id(fixturedef), _Owned(fixturedef))
        owned.ranges.append(range(since + 1, leaks.mark() + 1))

    def fixture_was_finished(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        """Notes that what is left of a fixture is a leak; unless its name is unittest's or xunit's.

        Such setups put their objects on classes and modules, which live until the process ends.
        """
        owned = self._owned.get(id(fixturedef))
        if owned is None:
            return
        if not fixturedef.argname.startswith(("_xunit_", "_unittest_")):
            del self._owned[id(fixturedef)]
            self._finished.append(owned)

    def answered_since(self, mark: int) -> list[range]:
        """Returns the numbers of the allocations that the test since `mark` answers for.

        With those of the fixtures that ended with it; so it must be asked once after each test.
        """
        finished, self._finished = self._finished, []
        return [range(mark + 1, leaks.mark() + 1)] + [
            numbers for owned in finished for numbers in owned.ranges
        ]

    def left(self, answered: Sequence[range]) -> list[LiveBlock]:
        """Returns the blocks of these numbers that are alive and no fixture's."""
        since = min(numbers.start for numbers in answered) - 1
        return [
            block
            for block in leaks.live_blocks(since)
            if any(block.number in numbers for numbers in answered)
            and not any(owned.has(block) for owned in self._owned.values())
        ]

    def give_to_fixtures(self, left: list[LiveBlock]) -> list[LiveBlock]:
        """Returns the blocks that no living fixture reaches; the others are its own from now on."""
        for owned in self._owned.values():
            if not left:
                break
            reached = addresses_reached_from(owned.fixturedef.cached_result)
            owned.ranges += [
                range(block.number, block.number + 1) for block in left if block.address in reached
            ]
            left = [block for block in left if block.address not in reached]
        return left


class _Owned:
    """Allocations that a fixture answers for."""

    def __init__(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        self.fixturedef = fixturedef
        self.ranges: list[range] = []

    def has(self, block: LiveBlock) -> bool:
        return any(block.number in numbers for numbers in self.ranges)


def _made_by_an_import(block: LiveBlock) -> bool:
    """Returns whether a module was being imported: its constants are made once per process."""
    for frame in block.stack():
        if frame.function == "<module>":
            return True
        if f"{os.sep}_pytest{os.sep}" in frame.file:
            return False
    return False


def _without_captures(left: list[LiveBlock]) -> list[LiveBlock]:
    """Returns the blocks that are not of code compiled with mode="reduce-overhead"."""
    replay = sys.modules.get("torch_npusim.inductor.replay")
    if replay is None or not left:
        return left
    captured = addresses_reached_from(replay.captured_memory())
    return [block for block in left if block.address not in captured]


def _without_arguments(left: list[LiveBlock], item: pytest.Item) -> list[LiveBlock]:
    """Returns the blocks that no argument of parametrize keeps: it was there before the test."""
    callspec = getattr(item, "callspec", None)
    if callspec is None or not left:
        return left
    reached = addresses_reached_from(callspec.params)
    return [block for block in left if block.address not in reached]


def _await_engine(left: Sequence[LiveBlock]) -> None:
    """Waits until the threads of the autograd engine have dropped what they worked on.

    backward() returns when the last gradient is ready, and then such a thread still holds the task.
    It takes up another one only when it has let go of that.
    """
    for device in {block.device for block in left}:
        try:
            with torch.enable_grad():
                x = torch.zeros((), device=torch.device("npusim", device), requires_grad=True)
                torch.autograd.grad(x * 1, x)
        except torch.OutOfMemoryError:
            return


def _exempt_for(item: pytest.Item, settings: Settings) -> tuple[Allowance, ...]:
    """Returns what may synchronise: the test itself, the frameworks, and what the settings list."""
    own = Allowance((), (str(item.path), f"*{os.sep}conftest.py", *_FRAMEWORKS))
    return own, *(_listed(pattern) for pattern in settings.sync_allow)


def _listed(pattern: str) -> Allowance:
    if os.sep in pattern:
        return Allowance((), (pattern,))
    if pattern not in _WORDS_OF_WAITS and re.fullmatch(r"\w+(\.\w+)*", pattern):
        return Allowance((), (), (pattern, f"{pattern}.*"))
    return Allowance((pattern,), ())


def _answers() -> dict[tuple[str, str], int]:
    """Returns how often a dry run has answered, by operator and line."""
    counts: dict[tuple[str, str], int] = {}
    for operator, _, _, count, site in _C.dry_answers():
        if place := _place_of(site):
            counts[operator, place] = counts.get((operator, place), 0) + count
    return counts


@lru_cache(maxsize=1 << 16)
def _place_of(site: int) -> str:
    """Returns the line of a question; empty if pytest asked, to show what failed."""
    found = _C.site(site)
    if any(file.endswith(_SHOWING) for file, _, _ in found["frames"]):
        return ""
    for file, line, _ in to_blame([*found["frames"], *found["forward"]]):
        return file_line(file, line)
    return "unknown"


class TestWatch:
    """One test, from before its setup to after its teardown."""

    __test__ = False  # no test of pytest's

    def __init__(self, session: Session, settings: Settings, item: pytest.Item) -> None:
        self.settings = settings
        self.failed = False
        self._session = session
        self._item = item
        self._syncs: dict[HostSync, int] = {}
        self._mode = 0
        self._level = "cuda"
        self._exempt = _exempt_for(item, settings)
        self._since = 0
        self._began = 0, 0
        self._before: list[int] = []
        self._answered: dict[tuple[str, str], int] = {}
        self._peak = 0
        self._leaked = 0
        self._used = False
        self._limited = False
        self._asserted = False
        self._compiler = Watch()
        self._recording: AbstractContextManager[Timeline] | None = None
        self._recorded = Timeline()
        self._launches: str | None = None

    def before_setup(self) -> None:
        """Gives the test its devices, memory and seed."""
        settings = self.settings
        count = torch.accelerator.device_count()
        if settings.devices is not None and count < settings.devices:
            reason = (
                f"needs {settings.devices} npusim devices, got {count}; "
                f"pass --npusim-devices={settings.devices}"
            )
            raise pytest.skip.Exception(reason, _use_item_location=True)
        if settings.leaks != "off":
            _C.record_memory_history("state", "state", "python", 1, False)
        if settings.memory is not None:
            self._limit_memory(parse_bytes(settings.memory))
        if settings.seed is not None:
            torch.manual_seed(settings.seed)
        _C.report_races_again()
        self._before = [npusim.memory_allocated(index) for index in range(count)]
        if settings.dry:
            self._answered = _answers()
        self._since = leaks.mark()
        self._began = self._worked()

    def _limit_memory(self, limit: int) -> None:
        for index in range(torch.accelerator.device_count()):
            total = npusim.mem_get_info(index)[1]
            if limit == total:
                continue
            if limit > total:
                raise pytest.UsageError(
                    f"npusim: the test wants devices of {format_bytes(limit)}, and they have "
                    f"{format_bytes(total)}; pass a larger --npusim-memory"
                )
            npusim.empty_cache()
            npusim.set_per_process_memory_fraction(limit / total, index)
            self._limited = True

    def before_call(self) -> None:
        """Starts to watch what the test itself does."""
        if self.settings.max_graph_breaks is not None:
            self._compiler.start()
        if npusim.is_initialized():
            for index in range(len(self._before)):
                npusim.reset_peak_memory_stats(index)
        if self.settings.max_launches is not None:
            self._recording = record(sites=True)
            self._recorded = self._recording.__enter__()
        if self.settings.sync in (None, "off"):
            return
        self._mode = synchronisation.mode()
        level = "strict" if self.settings.sync == "strict" else "hidden"
        self._level = synchronisation.set_level(level)
        synchronisation.set_exempt(self._exempt)
        synchronisation.start_recording(self._syncs)
        synchronisation.set_mode(_MODES.get(str(self.settings.sync), 0))

    def after_call(self) -> None:
        """Stops; what pytest prints after it is not the test's."""
        if self.settings.max_graph_breaks is not None:
            self._compiler.stop()
        if self._recording is not None and self.settings.max_launches is not None:
            self._recording.__exit__(None, None, None)
            self._launches = too_many_launches(self._recorded, self.settings.max_launches)
        if self.settings.sync not in (None, "off"):
            synchronisation.set_mode(self._mode)
            synchronisation.set_level(self._level)
            synchronisation.stop_recording(self._syncs)
            synchronisation.set_exempt(())
        peaks = [npusim.max_memory_allocated(index) for index in range(len(self._before))]
        self._peak = max(
            (peak - at for peak, at in zip(peaks, self._before, strict=True)), default=0
        )

    def problems_of_call(self) -> list[str | None]:
        """Returns what is wrong with what the test itself did; None: nothing."""
        return [self._problem_of_peak(), self._problem_of_graph_breaks(), self._launches]

    def _problem_of_peak(self) -> str | None:
        """Returns what is wrong if the test used more memory than it may."""
        limit = self.settings.peak
        if limit is None or self._peak <= limit:
            return None
        return (
            f"peak of device memory: {format_bytes(self._peak)} more than before the test; "
            f"at most {format_bytes(limit)} are allowed"
        )

    def _problem_of_graph_breaks(self) -> str | None:
        """Returns what is wrong if torch.compile left more code uncompiled than it may."""
        limit = self.settings.max_graph_breaks
        if limit is None:
            return None
        found = self._compiler.found
        if len(found) <= limit:
            return None
        listed = "\n".join(
            f"{one.place}: {one.code}\n    {one.kind} in {one.function}: {one.reason}\n"
            f"    instead: {one.instead}"
            for one in found
        )
        return f"code that did not run compiled: {len(found)}; at most {limit} is allowed\n{listed}"

    def _worked(self) -> tuple[int, int]:
        """Returns how many allocations there were, and the host's time, which each launch costs.

        Numbers of leaks.mark() will not do: freed garbage of an earlier test takes some.
        """
        stats = [_C.memory_stats(index) for index in range(len(self._before))]
        return sum(of["allocation.all.allocated"] for of in stats), _C.host_time_ns()

    def after_phase(self, passed: bool) -> None:
        """Notes how setup, call or teardown ended; what follows a failure finds the device back."""
        self.failed |= not passed
        if not passed:
            self._revive()

    def _revive(self) -> list[str]:
        """Gives devices back that a device-side assert has taken, which a GPU would not.

        Returns what no call has reported yet.
        """
        lost = _C.revive_devices()
        self._asserted |= bool(lost)
        return [text for _, text, told in lost if not told]

    def abandon(self) -> None:
        """Puts the devices back after a teardown that failed."""
        self.failed = True
        self.leak()

    def leak(self) -> str | None:
        """Puts the devices back; returns a report if the test has left device memory."""
        untold = self._revive()
        if self._limited:
            for index in range(len(self._before)):
                npusim.set_per_process_memory_fraction(1.0, index)
        self._used = self._began != self._worked()
        answered = self._session.answered_since(self._since)
        if untold and not self.failed:
            return "the test ended before it waited for the device, which has failed\n" + untold[0]
        # The traceback of a failure keeps the variables of its frames.
        if self.settings.leaks == "off" or self.failed or not self._session.left(answered):
            return None
        _await_engine(self._session.left(answered))
        for name in ("last_exc", "last_type", "last_value", "last_traceback"):
            sys.__dict__.pop(name, None)  # of an earlier failure
        for generation in (1, 2):  # cycles of objects; most are young, and then it is quick
            gc.collect(generation)
            left = self._session.give_to_fixtures(self._session.left(answered))
            if not left:
                return None
        left = [block for block in left if not _made_by_an_import(block)]
        left = _without_arguments(_without_captures(left), self._item)
        if not left:
            return None
        text = leaks.report(left)
        if any(
            fnmatch(line.strip(), pattern)
            for line in text.splitlines()
            for pattern in self.settings.leaks_allow
        ):
            return None
        self._leaked = sum(block.bytes for block in left)
        return f"the test left {format_bytes(self._leaked)} of device memory\n{text}"

    def asked(self) -> list[tuple[int, str, str]]:
        """Returns where a dry run answered the test's questions for values: count, what, line."""
        if not self.settings.dry:
            return []
        grown = {key: count - self._answered.get(key, 0) for key, count in _answers().items()}
        return [(count, *key) for key, count in grown.items() if count]

    def found(self) -> dict[str, Any]:
        """Returns what the summary needs, in types that cross processes."""
        return {
            "asked": self.asked(),
            "used": self._used,
            "asserted": self._asserted,
            "leaked": self._leaked,
            "peak": self._peak,
            "syncs": [
                [sync.what, sync.file, sync.line, sync.function, count]
                for sync, count in self._syncs.items()
                if sync.reported and not any(exempt.covers(sync) for exempt in self._exempt)
            ],
        }
