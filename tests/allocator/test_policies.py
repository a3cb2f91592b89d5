# SPDX-License-Identifier: BSD-3-Clause
"""Policies other than the caching allocator: built in, in Python, in a library; and their judge."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from allocator.reference import MIB
from allocator.test_replay import PRESETS, Events, random_events, run

from npusim_lab._lab import Op, bank_conflicts, policies, replay

CHECKOUT = Path(__file__).resolve().parents[2]


class Bump:
    """A policy that never reuses anything."""

    def __init__(self, step: float = 1, quantum: int = 32) -> None:
        self.step = step
        self.quantum = quantum
        self.end = self.at = 0

    def attach(self, device) -> None:
        self.device = device

    def malloc(self, bytes: int, stream: int) -> int | None:
        if self.at + bytes > self.end:
            base = self.device.acquire(64 * MIB)
            if base is None:
                return None
            self.at, self.end = base, base + 64 * MIB
        step = -(-int(bytes * self.step) // self.quantum) * self.quantum
        self.at += step
        return self.at - step

    def free(self, address: int, bytes: int, stream: int) -> None:
        pass


def test_a_policy_in_python() -> None:
    events = random_events("python", (MIB,), 300)
    trace = events.trace()
    good = replay(trace, Bump())
    assert good.policy == "Bump"
    assert good.violations == []
    total = int(trace.malloc_bytes.sum())
    assert good.peak_reserved >= total
    assert replay(trace, Bump(), capacity_bytes=64 * MIB).failed.any()


def test_what_goes_wrong_in_a_policy_reaches_the_caller() -> None:
    events = Events()
    events.add(Op.MALLOC, 1, 100)

    class Broken(Bump):
        def malloc(self, bytes: int, stream: int) -> int:
            raise KeyError("lost")

    with pytest.raises(
        ValueError, match=r"^policy Broken: event 0: malloc raised KeyError: 'lost' \(.*\.py:\d+\)$"
    ):
        replay(events.trace(), Broken())

    class Wordy(Bump):
        def malloc(self, bytes: int, stream: int) -> object:
            return answer

    for answer in ("here", -5, 4096.0, 0, 1 << 64, [1]):
        text = f"policy Wordy: event 0: malloc returned {answer!r}; expected an address or None"
        with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
            replay(events.trace(), Wordy())

    class Interrupted(Bump):
        def malloc(self, bytes: int, stream: int) -> int:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:  # of the user, for all that is known
        replay(events.trace(), Interrupted())
    assert re.match(r"in policy Interrupted: event 0: malloc \(", caught.value.__notes__[0])

    class Leaving(Bump):
        def malloc(self, bytes: int, stream: int) -> int:
            raise problem

    for problem in (SystemExit(0), SystemExit("done"), GeneratorExit(), BaseException("odd")):
        name = type(problem).__name__
        with pytest.raises(ValueError, match=rf"^policy Leaving: event 0: malloc raised {name}"):
            replay(events.trace(), Leaving())
    for missing in ("attach", "malloc", "free"):
        methods = {name: vars(Bump)[name] for name in ("attach", "malloc", "free")}
        del methods[missing]
        policy = type("Partial", (), methods)()
        with pytest.raises(ValueError, match=rf"^policy Partial has no method {missing}; expected"):
            replay(events.trace(), policy)
    kept = Bump()
    replay(events.trace(), kept)
    with pytest.raises(RuntimeError, match="has ended"):
        kept.device.acquire(1)


def test_a_policy_in_python_may_stitch() -> None:
    class Halves(Bump):
        def malloc(self, bytes: int, stream: int) -> int:
            a, b = self.device.acquire(2 * MIB), self.device.acquire(2 * MIB)
            return self.device.stitch([(b, 2 * MIB), (a, 2 * MIB)])

    events = Events()
    events.add(Op.MALLOC, 1, 4 * MIB)
    events.add(Op.MALLOC, 2, 4 * MIB)
    assert replay(events.trace(), Halves()).violations == []

    class Twice(Bump):
        def malloc(self, bytes: int, stream: int) -> int:
            page = self.device.acquire(2 * MIB)
            return self.device.stitch([(page, 2 * MIB), (page, 2 * MIB)])

    assert "overlap" in replay(events.trace(), Twice()).violations[0]


def test_the_judge_sees_overlaps_and_memory_that_is_not_there() -> None:
    events = Events()
    for id in range(3):
        events.add(Op.MALLOC, id, MIB)
    same = replay(events.trace(), Bump(0))
    assert same.violation_count == 2
    assert same.violations[0].startswith("event 1: malloc 1 of 1048576 bytes got 1048576 at 0x")
    assert same.violations[0].endswith(", which is in use by malloc 0")
    half = replay(events.trace(), Bump(0.5))
    assert half.violations[0].endswith("which overlap those of malloc 0")
    events.add(Op.MALLOC, 3, 100)
    for id in range(3):
        events.add(Op.FREE, id)
    events.add(Op.MALLOC, 4, 100)
    odd = replay(events.trace(), Bump(quantum=1))
    assert odd.violation_count == 1
    assert odd.violations[0].startswith("event 7: malloc 4 of 100 bytes")
    assert odd.violations[0].endswith("which is not a multiple of 32")

    class Invented(Bump):
        def malloc(self, bytes: int, stream: int) -> int:
            return 4096

    assert "not all of which are lent" in replay(events.trace(), Invented()).violations[0]

    class Hasty(Bump):
        def malloc(self, bytes: int, stream: int) -> int | None:
            if self.end:
                self.device.release(self.end - 64 * MIB)
                self.end = 0
            return super().malloc(bytes, stream)

    hasty = replay(events.trace(), Hasty())
    assert hasty.violations[0].startswith("event 1: the memory of malloc 0 at 0x")
    assert hasty.violations[0].endswith("was given back while in use")

    class Twice(Bump):
        def free(self, address: int, bytes: int, stream: int) -> None:
            self.device.release(self.end - 64 * MIB)

    twice = replay(events.trace(), Twice())
    text = "acquire() did not return, or which is released already"
    assert any(text in violation for violation in twice.violations)
    assert twice.violations[0].startswith("event 4: ")


def test_all_violations_are_counted_and_the_first_are_told() -> None:
    events = Events()
    for id in range(100):
        events.add(Op.MALLOC, id, MIB)
    result = replay(events.trace(), Bump(0))
    assert result.violation_count == 99
    assert len(result.violations) == 20


@pytest.mark.parametrize("name", [name for name in policies() if name not in PRESETS])
@pytest.mark.parametrize("seed", range(4))
def test_policies_never_overlap_and_give_everything_back(name: str, seed: int) -> None:
    events = random_events(seed, (MIB, 20 * MIB, 300), 2000)
    capacity = (1 << 50, 1 << 50, 300 * MIB, 100 * MIB)[seed]
    result = run(events, name, capacity_bytes=capacity, picture_at_end=True)
    assert result.violations == []
    assert result.peak_reserved <= capacity
    assert result.peak_reserved >= result.peak_active >= result.peak_requested
    if seed < 2:
        assert result.ooms == []
        assert result.peak_requested <= events.trace().max_live_bytes  # what waits may end sooner


def compile_policy(folder: Path, source: str) -> str:
    """Build a shared library from C and return its path."""
    (folder / "policy.c").write_text(source)
    library = folder / "policy.so"
    command = ["cc", "-shared", "-fPIC", "-Werror", "-I", str(CHECKOUT), "-o", str(library)]
    subprocess.run([*command, str(folder / "policy.c")], check=True)
    return str(library)


def test_a_policy_from_a_shared_library(tmp_path: Path) -> None:
    example = CHECKOUT / "allocator" / "placement" / "examples" / "next_fit_policy.c"
    library = compile_policy(tmp_path, example.read_text())
    events = random_events("library", (MIB, 300))
    result = run(events, library, settings="arena_mb:500")
    assert result.violations == []
    assert result.ooms == []
    assert result.peak_reserved == 500 * MIB
    assert run(events, library, settings="arena_mb:2").failed.any()
    with pytest.raises(ValueError, match='"size:1" is no setting; expected arena_mb'):
        run(events, library, settings="size:1")


def test_libraries_that_are_no_policies_are_refused(tmp_path: Path) -> None:
    events = Events()
    events.add(Op.MALLOC, 1, 100)
    with pytest.raises(ValueError, match="cannot be loaded"):
        run(events, str(tmp_path / "none.so"))
    with pytest.raises(ValueError, match="exports no function npusim_policy"):
        run(events, compile_policy(tmp_path, "int unrelated;"))
    (tmp_path / "old").mkdir()
    old = "const unsigned* npusim_policy(void) { static unsigned version = 99; return &version; }"
    with pytest.raises(ValueError, match="version 99 of the interface; expected 1"):
        run(events, compile_policy(tmp_path / "old", old))


def test_a_plan_needs_no_more_than_its_bound_says() -> None:
    events = random_events("plan", (MIB, 20 * MIB), 1000)
    trace = events.trace()
    result = replay(trace, "planned", "align_bytes:1")
    height, plan_bytes = result.peak_reserved, result.metrics["plan_bytes"]
    unplanned = result.metrics["unplanned_mallocs"]
    assert unplanned == 0
    assert height == plan_bytes >= trace.max_live_bytes
    assert height <= 1.2 * trace.max_live_bytes


def test_stitching_serves_one_request_from_pieces() -> None:
    events = Events()
    for id in range(6):
        events.add(Op.MALLOC, id, 10 * MIB)
    for id in (0, 2, 4):
        events.add(Op.FREE, id)
    events.add(Op.MALLOC, 9, 30 * MIB)
    stitched = run(events, "stitching")
    assert stitched.peak_reserved == 60 * MIB
    assert stitched.metrics == {"stitches": 1, "stitches_reused": 0}
    assert stitched.violations == []
    assert run(events, "npusim").peak_reserved == 90 * MIB


def test_bank_aware_placement_has_fewer_conflicts_than_best_fit() -> None:
    events = random_events("banks", (MIB, 64 * 1024))
    trace = events.trace()
    counted = {}
    for aware in (0, 1):
        result = replay(trace, "banked", f"aware:{aware},banks:8,window:3")
        counted[aware] = result.metrics["bank_conflicts"] / result.metrics["bank_pairs"]
        assert result.violations == []
    assert counted[1] < 0.05 < counted[0]
    conflicts, pairs = bank_conflicts(trace, replay(trace).address, banks=8)
    assert 0.05 < conflicts / pairs < 0.5
    with pytest.raises(ValueError, match="expected one each"):
        bank_conflicts(trace, [1])
