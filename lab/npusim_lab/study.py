# SPDX-License-Identifier: BSD-3-Clause
"""Questions to a trace: what a policy does with it, which of several is best, what is possible."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npusim_lab import _lab
from npusim_lab.trace import Op, Trace

UNLIMITED = 1 << 50  # bytes; the most a simulated device can have
_BOUND_STEPS = 100_000_000  # of the planner's search: a second
METRICS = {
    "violations": "impossible answers; of a policy that gives any no other metric means anything",
    "ooms": "requests that failed",
    "peak_reserved": "most bytes taken from the device at once",
    "utilisation": "peak active / peak reserved",
    "waste_at_peak": "1 - active / reserved, both when reserved is at its peak",
    "internal": "1 - peak requested / peak active",
    "over_max_live": "peak reserved / max live; no policy is below 1; not where requests failed",
    "device_calls": "segments and pages taken from or given back to the device",
    "seconds": "CPU time of the replay",
    "peak_active": "most bytes of blocks in use at once, as rounded by the policy",
    "waste_over_time": "1 - requested / reserved, both summed over all events",
    "fragmentation": "1 - largest free piece / all free, mean over the trace; not with --latency",
    "retries": "requests tried again after cached memory was given back",
    "device_ms": "what the device calls take, at DEVICE_COSTS",
    "bank_conflicts": "share of neighbours in time that begin in one bank; with --banks",
    "latency_p50": "ns per call on this machine, half are below; with --latency",
    "latency_p99": "the same, 99 of 100 are below",
}
TABLE = tuple(METRICS)[: tuple(METRICS).index("seconds") + 1]  # what a table shows by default

# Microseconds: of a call and, for pages, of each 2 MiB. Assumed, not measured: drivers differ by an
# order of magnitude. Mapping 2 GiB by pages then takes as long as a hundred mallocs of 2 GiB.
DEVICE_COSTS = {"malloc": 200.0, "free": 200.0, "map": 20.0, "unmap": 20.0}
# Of settings, what is not of every torch; tools/cuda_allocator asked the builds' own allocators.
_OLDER_TORCH = {
    "PYTORCH_ALLOC_CONF": "Up to torch 2.9 the variable is PYTORCH_CUDA_ALLOC_CONF.",
    "large_segment_size_mb": "large_segment_size_mb is of torch 2.11 and later.",
}
_PAGE = 1 << 21
_POINTS = 100  # of over_time


@dataclass(frozen=True)
class Choice:
    """A policy and its settings.

    Args:
        policy: a name of npusim_lab.policies(), the path of a shared library, "file.py:Class" of a
            policy in Python, or an object of such a class.
        settings: "key:value,..." as in PYTORCH_ALLOC_CONF.
    """

    policy: Any = "npusim"
    settings: str = ""

    def __str__(self) -> str:
        name = self.policy if isinstance(self.policy, str) else type(self.policy).__name__
        return f"{name},{self.settings}" if self.settings else name

    def with_arena(self, arena: str) -> Choice:
        """Return the choice with segments of a rule: "cuda", "one", or a size in MiB.

        A policy without that setting, or with a rule of its own in its settings, stays as it is; so
        do all with "cuda", the rule that they have without it.
        """
        if arena == "cuda":
            return self
        known = isinstance(self.policy, str) and _lab.has_arenas(self.policy)
        if not known or "arena" in parse_settings(self.settings):
            return self
        return self.with_settings({"arena": arena})

    def with_settings(self, settings: Mapping[str, str]) -> Choice:
        """Return the choice with some settings replaced or added."""
        merged = {**parse_settings(self.settings), **settings}
        return Choice(self.policy, ",".join(f"{key}:{value}" for key, value in merged.items()))


def recorded_choice(trace: Trace) -> Choice:
    """Return policy and settings of the recorded run; "cuda-2.13" where they are not known."""
    return Choice(trace.info.get("policy", "cuda-2.13"), trace.info.get("settings", ""))


def notes_on_older_torch(setting: str) -> list[str]:
    """Return sentences on versions of torch that do not know a setting, or its variable."""
    return [text for word, text in _OLDER_TORCH.items() if word in setting]


def streams_note(trace: Trace, choices: Iterable[Choice]) -> str:
    """Return a sentence on the policies that ignore the streams of a trace; "" where none does.

    Only of built-in policies is it known.
    """
    streams = len(set(trace.stream[trace.op == Op.MALLOC].tolist()))
    named = [choice.policy for choice in choices if isinstance(choice.policy, str)]
    ignoring = dict.fromkeys(name for name in named if _lab.ignores_streams(name))
    if streams < 2 or not ignoring:
        return ""
    return (
        f"Ignoring streams: {', '.join(ignoring)}. The trace has {streams} streams, and what is "
        "freed on one goes to another at once; that is safe only where the program itself makes "
        "the one wait for the other."
    )


def parse_choices(text: str) -> list[Choice]:
    """Read "cuda-2.13,buddy,cuda-2.13,expandable_segments:True": a setting follows its policy.

    Raises:
        ValueError: If the text begins with a setting.
    """
    choices: list[tuple[str, list[str]]] = []
    for item in _split(text):
        if ":" not in item or ".py:" in item or "/" in item:
            choices.append((item, []))
        elif choices:
            choices[-1][1].append(item)
        else:
            raise ValueError(f"{text!r}: the setting {item!r} comes before any policy")
    return [Choice(policy, ",".join(settings)) for policy, settings in choices]


def parse_settings(text: str) -> dict[str, str]:
    """Return the entries of "key:value,...".

    Raises:
        ValueError: If an entry has no value.
    """
    entries = {}
    for item in _split(text):
        key, colon, value = item.partition(":")
        if not colon:
            raise ValueError(f"settings {text!r}: {item!r} has no value; expected key:value")
        entries[key] = value
    return entries


def replay(
    trace: Trace,
    choice: Choice | str = "npusim",
    capacity_bytes: int | None = None,
    *,
    as_recorded: bool = True,
    **options: Any,
) -> _lab.Replay:
    """Run a trace under a policy; `options` are those of npusim_lab._lab.replay().

    A recording that began late begins with older blocks. Under a caching preset they lie where they
    lay; any other policy places them itself, and so does a preset with another quantum, or on a
    device too small for them. `began_as_recorded` of the result says which.

    Args:
        trace: the events.
        choice: the policy; a text may hold settings, as in "cuda-2.13,expandable_segments:True".
        capacity_bytes: of the device; without it as much as needed.
        as_recorded: False lets every policy place older blocks itself, as if its settings had
            been in force from the beginning.

    Raises:
        ValueError: For an unknown policy, setting or option.
    """
    if isinstance(choice, str):
        first, *more = parse_choices(choice) or [Choice()]
        if more:
            raise ValueError(f"{choice!r} names several policies; expected one")
        choice = first
    capacity = UNLIMITED if capacity_bytes is None else capacity_bytes
    policy = choice.policy
    if isinstance(policy, str) and ".py:" in policy:
        from npusim_lab.policy_process import told

        policy = told(trace, policy, capacity, options)
    if as_recorded and "initial" not in options:
        options["initial"] = _start(trace, choice, capacity)
    result = _lab.replay(trace.compiled, policy, choice.settings, capacity, **options)
    if policy is not choice.policy:  # of its own process, not of this repetition
        result.policy, result.seconds = str(choice.policy), policy.seconds
        result.latency_ns = policy.latency_ns
    result.began_as_recorded = not trace.is_late or options.get("initial") is not None
    return result


def _start(trace: Trace, choice: Choice, capacity: int) -> Any:
    """Return what a replay begins with: the recorded state where this policy can take it over."""
    if not isinstance(choice.policy, str) or choice.policy not in _lab.presets():
        return None
    start = trace.initial
    if start is None or int(start.block_bytes[start.block_state != 3].sum()) > capacity:
        return None
    config = _lab.config(choice.policy, choice.settings)
    if start.segment_is_expandable.any() and not config["expandable_segments"]:
        return None
    quantum = int(config["quantum_bytes"])
    return None if (start.block_bytes % quantum).any() else start


def measures(trace: Trace, result: _lab.Replay, banks: int | None = None) -> dict[str, Any]:
    """Return the METRICS of a replay, "first_violation" and "over_time".

    None stands for what was not measured or has no meaning: "over_max_live" where requests failed,
    and all but the first two of a policy with violations.
    "over_time" has lists of one length: of each interval of events the last "event", the most bytes
    "reserved", "active" and "requested" in it, and "fragmentation" at its end.

    Args:
        trace: the events.
        result: of replay(); for bank conflicts it needs placements, for what is over time
            curve_points and fragmentation.
        banks: how many there are, 512 bytes wide.
    """
    reserved, active = result.peak_reserved, result.peak_active
    conflicts, pairs = (
        (0, 0) if banks is None else _lab.bank_conflicts(trace.compiled, result.address, banks)
    )
    latency = result.latency_ns
    series = _over_time(trace, result)
    values: dict[str, Any] = {
        "ooms": len(result.ooms),
        "peak_reserved": reserved,
        "utilisation": active / reserved if reserved else None if result.ooms else 1.0,
        "waste_at_peak": 1 - result.active_at_peak_reserved / reserved if reserved else 0.0,
        "internal": 1 - result.peak_requested / active if active else 0.0,
        "over_max_live": None if result.ooms else reserved / max(trace.compiled.max_live_bytes, 1),
        "device_calls": len(result.device_op),
        "seconds": result.seconds,
        "peak_active": active,
        "waste_over_time": _waste_over_time(trace, result),
        "fragmentation": float(np.mean(series["fragmentation"])) if series else None,
        "retries": result.retries,
        "device_ms": _device_ms(result),
        **result.metrics,
        "bank_conflicts": None if banks is None else conflicts / max(pairs, 1),
        "latency_p50": int(np.percentile(latency, 50)) if len(latency) else None,
        "latency_p99": int(np.percentile(latency, 99)) if len(latency) else None,
    }
    if result.violation_count:
        values = dict.fromkeys(values)
        series = None
    first = result.violations[0] if result.violations else None
    head = {"violations": result.violation_count, "first_violation": first}
    return {**head, **values, "over_time": series}


def mib(bytes: int) -> str:
    """Return bytes in MiB with enough digits to tell 1.0127 from 1; few bytes as they are."""
    value = bytes / (1 << 20)
    if value < 0.1:
        return f"{bytes} bytes"
    return f"{value:.1f} MiB" if value >= 1000 else f"{value:.5g} MiB"


def name_of(row: Mapping[str, Any]) -> str:
    """Return the policy of a row with its settings."""
    return ",".join(filter(None, (row["policy"], row.get("settings"))))


def violations_note(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return a sentence per policy of some rows that answered what cannot be; "" for none."""
    return "\n".join(
        f"VIOLATION: {name_of(row)}: {row['first_violation']} (the first of {row['violations']}). "
        "This policy cannot run on a device; it is not ranked."
        for row in rows
        if row["violations"]
    )


def _waste_over_time(trace: Trace, result: _lab.Replay) -> float:
    compiled = trace.compiled
    life = compiled.completed_event - compiled.malloc_event
    requested = compiled.malloc_bytes.astype(np.float64) * life
    failed = [oom["malloc"] for oom in result.ooms]
    total = float(requested.sum() - requested[failed].sum())
    whole = result.reserved_byte_events
    return 1 - total / whole if whole > 0 and result.stopped_at < 0 else 0.0


def fragmentation(result: _lab.Replay) -> NDArray[np.float64]:
    """Return 1 - largest free piece / all free at each point of a replay's curves; 0 of nothing.

    The replay needs curve_points and fragmentation; the array is empty without.
    """
    free = result.free_bytes.astype(np.float64)
    return np.asarray(np.where(free > 0, 1 - result.largest_free / np.maximum(free, 1), 0.0))


def _over_time(trace: Trace, result: _lab.Replay) -> dict[str, list[Any]] | None:
    if not len(result.free_bytes):
        return None
    last = np.arange(1, len(result.reserved) + 1, dtype=np.int64) * result.curve_every - 1
    columns = {
        "event": np.minimum(last, len(trace) - 1),
        **{name: getattr(result, name) for name in ("reserved", "active", "requested")},
        "fragmentation": fragmentation(result).round(4),
    }
    return {name: column.tolist() for name, column in columns.items()}


def _device_ms(result: _lab.Replay) -> float:
    pages = -(-result.device_bytes.astype(np.int64) // _PAGE)
    count = {
        "malloc": int((result.device_op == Op.SEGMENT_ALLOC).sum()),
        "free": int((result.device_op == Op.SEGMENT_FREE).sum()),
        "map": int(pages[result.device_op == Op.SEGMENT_MAP].sum())
        + result.stitched_bytes // _PAGE,
        "unmap": int(pages[result.device_op == Op.SEGMENT_UNMAP].sum())
        + result.unstitched_bytes // _PAGE,
    }
    return sum(number * DEVICE_COSTS[call] for call, number in count.items()) / 1000


def row_of(
    trace: Trace,
    choice: Choice,
    capacity_bytes: int | None,
    banks: int | None = None,
    latency: bool = False,
) -> dict[str, Any]:
    """Replay a trace and return a row of compare().

    A policy whose own process did not answer the whole trace has a row with that violation.
    """
    from npusim_lab.policy_process import PolicyError

    with_places = banks is not None
    head = {"policy": str(Choice(choice.policy)), "settings": choice.settings}
    try:
        result = replay(
            trace,
            choice,
            capacity_bytes,
            placements=with_places,
            latency=latency,
            curve_points=0 if latency else _POINTS,  # walking the blocks would empty the caches
            fragmentation=True,
        )
    except PolicyError as problem:
        row: dict[str, Any] = dict.fromkeys((*METRICS, "over_time"))
        return {**head, **row, "violations": 1, "first_violation": str(problem)}
    return {**head, **measures(trace, result, banks)}


def bounds(trace: Trace, alignment: int = 1) -> dict[str, int]:
    """Return what no policy can beat, and what one that knows the future reaches.

    Returns:
        "max_live": most requested bytes in use at once; "at_least": proven, no placement takes
        less; "planned": height of the best one found, without moving or stitching blocks.
    """
    from npusim_lab.planning import Buffers, plan

    found = plan(Buffers.of_trace(trace), alignment=alignment, steps=_BOUND_STEPS)
    live = trace.compiled.max_live_bytes
    return {"max_live": live, "at_least": found.at_least, "planned": found.height}


def smallest_capacity(
    trace: Trace, choice: Choice, step_bytes: int = 1 << 21, at_most: int | None = None
) -> int | None:
    """Return the least capacity, in steps, under which nothing fails; None if above `at_most`.

    Found by bisection: a policy that gives memory back when the device is full may also fail at
    some larger capacity, so the answer is one that works, and one step less does not.
    """
    low = trace.compiled.max_live_bytes // step_bytes
    peak = replay(trace, choice, as_recorded=False, placements=False).peak_reserved
    high = -(-max(peak, 1) // step_bytes)
    if at_most is not None:
        high = min(high, at_most // step_bytes)
    if not _fits(trace, choice, high * step_bytes):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if _fits(trace, choice, middle * step_bytes):
            high = middle
        else:
            low = middle
    return high * step_bytes


def _fits(trace: Trace, choice: Choice, capacity_bytes: int) -> bool:
    if capacity_bytes <= 0:
        return False
    result = replay(
        trace, choice, capacity_bytes, as_recorded=False, placements=False, on_oom="stop"
    )
    return not result.ooms and not result.violation_count


def _split(text: str) -> list[str]:
    items, depth = [""], 0
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            items.append("")
        else:
            items[-1] += letter
    return [item.strip() for item in items if item.strip()]
