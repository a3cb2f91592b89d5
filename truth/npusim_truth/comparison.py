# SPDX-License-Identifier: BSD-3-Clause
"""Compares a recording with npusim's claims, question by question."""

import csv
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from npusim_truth import placements, versions
from npusim_truth.recordings import Key, Recording, is_held_out, spec_of
from torch_npusim.fit import outside
from torch_npusim.sim import rules

#: A modelled time is compared as an interval of this half width. It holds six of ten times of the
#: held-out halves (docs/reference/measured_times.md).
INTERVAL = 0.2
#: Peaks agree within this share.
PEAK = 0.01


@dataclass(frozen=True)
class Verdict:
    """One claim and what the device says.

    Attributes:
        of: The question.
        kind: The class of the claim: a name of KINDS.
        agrees: Whether both say the same.
        theirs, ours: The answers of the device and of npusim.
        row: Which row or file of ours makes the claim.
        program: The smallest program that shows it.
        error: Of a time: ours / theirs - 1.
        parts: Of a claim with parts: how many agree, of how many.
        version: Where another version of torch is known to say this: the source (versions.csv).
        incomparable: Why the two answers cannot be compared (incomparable.csv).
    """

    of: Key
    kind: str
    agrees: bool
    theirs: Any
    ours: Any
    row: str
    program: str
    error: float | None = None
    parts: tuple[int, int] | None = None
    version: str = ""
    incomparable: str = ""

    @property
    def is_wrong(self) -> bool:
        """Whether it is a mistake: no other version of torch, and comparable."""
        return not (self.agrees or self.version or self.incomparable)

    @property
    def is_held_out(self) -> bool:
        """Whether the claim belongs to the half that no fit sees."""
        return is_held_out(self.of)


#: Class of claims -> what agreement means.
KINDS = {
    "identity": "capability, multiprocessors and memory of the specification",
    "accepts": "accepted with results of the same dtypes, or refused",
    "refusals": "type of the exception and first line of its text, where both refuse",
    "rows": "what a row of the rule book is about: the dtypes of its results, or the type and the "
    "first line of the exception; the same under torch.use_deterministic_algorithms()",
    "alerts": "the same alerts under torch.use_deterministic_algorithms()",
    "warnings": "the same warnings, first lines",
    "waits": "whether forward and backward make the host wait",
    "captures": "whether a graph can capture it",
    "asserts": "whether an index out of range fails by the wait behind its call, and whether the "
    "calls after it do",
    "placements": "each block in the same segment at the same offset, where the allocator has the "
    "segments' addresses of the driver",
    "counters": "counters of torch.cuda.memory_stats() of that replay, exactly",
    "temporaries": "the same bytes allocated and freed in the same order, frees in a row in any",
    "saved": "the same tensors saved for backward, by dtype and shape",
    "outside": "memory of the context and of libraries, within the interval of `npusim fit`",
    "rates": f"the measured interval meets the modelled time, +- {INTERVAL:.0%}",
    "kernels": "the same number of kernels, in forward and backward",
    "step times": f"the measured interval meets the modelled time, +- {INTERVAL:.0%}",
    "peaks": f"peak allocated and reserved bytes, within {PEAK:.0%}",
    "step lists": "the same bytes allocated and freed in the same order, frees in a row in any",
    "offsets": "the same advance of the Philox offset",
    "names": "the same public names, of the same kinds",
    "answers": "the same value, or the same exception",
    "orders": "the same order of work, as queries see it",
    "collectives": f"the measured interval meets the modelled time, +- {INTERVAL:.0%}",
    "reach": "which devices reach each other's memory",
}
_BY_PREFIX = {
    "alerts": "alerts", "warns": "warnings", "waits": "waits", "captures": "captures",
    "outside": "outside", "kernels": "kernels", "launches": "kernels", "time": "step times",
    "peak": "peaks", "reserved": "peaks", "list": "step lists", "offset": "offsets",
    "names": "names", "says": "answers", "value": "answers", "order": "orders", "reach": "reach",
    "copy": "rates",
    "stream": "rates", "mm": "rates", "conv": "rates", "sdpa": "rates", "gap": "rates",
}  # fmt: skip
_NO_CLAIM = ("calls", "load", "host")
#: Rows that no program can ask about, and why.
NOT_ASKED = {
    "aten::convolution_overrideable": "the form of a convolution for backends outside of torch",
    "aten::linalg_lstsq.out": "questions have one tensor for out=, and this has four",
}
_IDENTITY = ("capability", "multi_processor_count", "total_memory")


def compare(theirs: Recording, ours: Recording) -> list[Verdict]:
    """Returns a verdict per claim; questions that only one side has are left out."""
    calls = {
        key.partition("|")[2]: set(value)
        for key, value in {
            **theirs.answers.get("acceptance", {}), **ours.answers.get("acceptance", {})
        }.items()
        if key.startswith("calls|") and isinstance(value, list)
    }  # fmt: skip
    found: list[Verdict] = []
    for of in theirs.keys():
        if ours.get(of) is not None:
            found += _verdicts(of, theirs, ours, calls)
    other = _other_samples(theirs, ours)
    return [
        replace(v, incomparable=OTHER_SAMPLE)
        if not v.agrees and v.of.key.partition("|")[2] in other and v.kind in _OF_SAMPLES
        else v
        for v in found
    ]


#: Why an answer about an operator's first sample is no answer to the other side's question.
OTHER_SAMPLE = "torch's table of operators has another first sample in the other version"
_OF_SAMPLES = ("alerts", "warnings", "waits", "captures", "temporaries", "saved", "kernels")


def _other_samples(theirs: Recording, ours: Recording) -> set[str]:
    """Returns the operators whose first sample the two sides describe differently."""
    sections = (("allocation", "lists|"), ("rates", "launches|"))
    return {
        key.partition("|")[2]
        for section, prefix in sections
        for key, his in theirs.answers.get(section, {}).items()
        if key.startswith(prefix)
        and isinstance(mine := ours.get(Key(section, key)), dict)
        and "call" in his
        and "call" in mine
        and his["call"] != mine["call"]
    }


def _verdicts(
    of: Key, theirs: Recording, ours: Recording, calls: dict[str, set[str]]
) -> Iterator[Verdict]:
    his, mine = theirs.get(of), ours.get(of)
    prefix = of.key.partition("|")[0]
    program = _program(of, his, mine)

    def verdict(kind: str, agrees: bool, a: Any, b: Any, error: float | None = None) -> Verdict:
        if not agrees and (source := versions.source(kind, of.key, a, b, theirs.torch, ours.torch)):
            return Verdict(of, kind, False, a, b, "", program, error, None, source)
        if not agrees and (reason := versions.reason(kind, of.key)):
            return Verdict(of, kind, False, a, b, "", program, error, incomparable=reason)
        row = "" if agrees else _row(of, kind, calls, ours)
        return Verdict(of, kind, agrees, a, b, row, program, error)

    if of.section == "identity":
        if of.key in _IDENTITY:
            yield verdict("identity", his == mine, his, mine)
        return
    if prefix in _NO_CLAIM:
        return
    if prefix in ("accepts", "asserts"):
        yield from _accepts(verdict, prefix, his, mine)
    elif prefix == "rules":
        device, claim = ([_words(text) for text in _sayings(side)] for side in (his, mine))
        yield verdict("rows", device == claim, device, claim)
    elif prefix in ("lists", "layers") and "saved" in his and "saved" in mine:
        yield verdict("saved", his["saved"] == mine["saved"], his["saved"], mine["saved"])
        ways = ("forward", "backward")
        a, b = ({way: _in_turn(side[way]) for way in ways} for side in (his, mine))
        yield verdict("temporaries", a == b, *_apart(a, b))
    elif prefix in ("lists", "layers"):
        yield verdict("temporaries", _stripped(his) == _stripped(mine), his, mine)
    elif prefix == "places":
        yield from _places(verdict, his, mine, theirs.torch)
    elif of.section == "collectives" and prefix != "reach":
        yield _time(verdict, "collectives", his, mine)
    else:
        kind = _BY_PREFIX.get(prefix, "answers")
        if kind in ("rates", "step times"):
            yield _time(verdict, kind, his, mine)
        elif kind == "outside" and isinstance(his, int):
            if (known := outside.context(spec_of(theirs))) is not None:
                ends = known.low, known.high
                yield verdict(kind, ends[0] <= his <= ends[1], his, ends)
        elif kind == "warnings" and isinstance(his, list) and isinstance(mine, list):
            heard, ours_heard = ([_words(text) for text in side] for side in (his, mine))
            yield verdict(kind, heard == ours_heard, heard, ours_heard)
        elif kind == "peaks" and isinstance(his, int) and isinstance(mine, int):
            yield verdict(kind, abs(mine - his) <= PEAK * max(his, 1), his, mine)
        else:
            a, b = _stripped(his), _stripped(mine)
            if kind == "step lists":
                a, b = _in_turn(a), _in_turn(b)
            yield verdict(kind, a == b, *_apart(a, b))


def _accepts(
    verdict: Callable[..., Verdict], prefix: str, his: Any, mine: Any
) -> Iterator[Verdict]:
    his, mine = _sayings(his), _sayings(mine)
    if prefix == "accepts":  # two samples, where torch has two: one version has more than another
        asked = min(len(his), len(mine))
        his, mine = his[:asked], mine[:asked]
    asserts = prefix == "asserts"

    def outcome(text: str) -> str:
        return text if text.startswith("ok") else "refused"

    a, b = ([outcome(text) for text in side] for side in (his, mine))
    if asserts and len(a) == len(b) == 4:  # the call itself, or the wait behind it: a race
        del a[1], b[1]
    kind = "asserts" if asserts else "accepts"
    yield verdict(kind, a == b, his, mine)
    both = [
        (x, y) for x, y in zip(his, mine, strict=False) if {outcome(x), outcome(y)} == {"refused"}
    ]
    if both and not asserts:
        same = all(_words(x) == _words(y) for x, y in both)
        yield verdict("refusals", same, [x for x, _ in both], [y for _, y in both])


def _sayings(value: Any) -> list[str]:
    if isinstance(value, dict) and "said" in value:
        return [str(text) for text in value["said"]]
    return [str(value)]


def _places(verdict: Callable[..., Verdict], his: Any, mine: Any, torch: str) -> Iterator[Verdict]:
    if "entries" not in his:  # both ran into their limit, or one: what the allocator itself says
        a, b = _of_allocator(his), _of_allocator(mine)
        yield verdict("placements", a == b, his, mine)
        return
    found = placements.agreement(his, torch)
    if found.compared:
        ours = f"{found.equal} of {found.compared} equal"
        ours += "" if found.first is None else f"; first: {found.first}"
        made = verdict(
            "placements", found.equal == found.compared, f"{found.compared} placements", ours
        )
        yield replace(made, parts=(found.equal, found.compared))
    if not found.counters:  # there was no replay
        return
    other = [name for name, value in his["stats"].items() if found.counters.get(name) != value]
    a, b = ({name: of.get(name) for name in other} for of in (his["stats"], found.counters))
    yield verdict("counters", not other, a, b)


_ALLOCATORS = re.compile(
    r"allocate [\d.]+ \w+|[\d.]+ \w+ (?:allowed|is allocated by PyTorch|is reserved by PyTorch)"
)


def _of_allocator(value: Any) -> Any:
    """Returns an error without what it says of other processes and of memory outside."""
    if "raised" not in value:
        return value.keys() - {"limit", "stats"}
    kind, text = value["raised"]
    return kind, _ALLOCATORS.findall(text)


def _time(verdict: Callable[..., Verdict], kind: str, his: Any, mine: Any) -> Verdict:
    if "us" not in his or "us" not in mine:
        return verdict(kind, _stripped(his) == _stripped(mine), his, mine)
    low, high = mine["us"] * (1 - INTERVAL), mine["us"] * (1 + INTERVAL)
    agrees = his["low"] <= high and low <= his["high"]
    error = mine["us"] / his["us"] - 1 if his["us"] else None
    return verdict(kind, agrees, _us(his), f"{mine['us']:.5g} us", error)


def _us(value: Any) -> str:
    return f"{value['us']:.5g} us ({value['low']:.5g} to {value['high']:.5g})"


def _words(text: str) -> str:
    """Returns a text without sizes, its line in the sources, its device, and a list of backends."""
    text = re.sub(r"\d+(\.\d+)? (bytes|[KMG]iB)", "N bytes", text)
    text = re.sub(r"(with arguments from the '\w+' backend)\..*", r"\1", text)
    text = text.partition(" (Triggered internally at")[0]
    return re.sub(r"\b(cuda|npusim):\d+", r"cuda:0", text).strip()


def _stripped(value: Any) -> Any:
    """Returns an answer as it is compared: texts of exceptions by their first line."""
    if isinstance(value, dict) and isinstance(value.get("raised"), list):
        kind, text = value["raised"]
        words = _words(str(text).partition("\n")[0])
        if kind == "OutOfMemoryError":  # then comes what other processes have
            words = words.partition(" of which ")[0]
        return {"raised": [kind, words]}
    if isinstance(value, dict):
        return {key: item for key, item in value.items() if key != "call"}
    return value


def _in_turn(steps: Any) -> Any:
    """Returns a list of allocations and frees with the frees in a row sorted.

    The end of autocast frees its cache in the order of a hash table of addresses.
    """
    if not isinstance(steps, list):
        return steps
    rows = itertools.groupby(steps, key=lambda step: step < 0)
    return [step for is_free, row in rows for step in (sorted(row) if is_free else row)]


def _apart(a: Any, b: Any) -> tuple[Any, Any]:
    """Returns two values without what is equal in them."""
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() != {"raised"}:
        keys = [key for key in {**a, **b} if a.get(key) != b.get(key)]
        return {key: a.get(key) for key in keys}, {key: b.get(key) for key in keys}
    return a, b


# --- Which claim of ours it is, and the program that shows it


def _program(of: Key, his: Any, mine: Any) -> str:
    for value in (his, mine):
        if isinstance(value, dict) and "call" in value:
            return str(value["call"])
    prefix, _, rest = of.key.partition("|")
    if prefix in ("says", "order"):
        return rest.partition(": ")[2] if prefix == "order" else rest
    return f'python truth_record.pyz --ask "{of.key}"'


def is_heard(rule: rules.Rule) -> bool:
    """Returns whether a row was learnt from a recording: a sample of an operator asks for it."""
    return rule.source.startswith("an H100")


_KINDS = ("Sparse", "SparseCsr")


def keys_of(rule: rules.Rule) -> list[str]:
    """Returns the questions about a row of the rule book."""
    if rule.verdict == "asserts":
        return [f"asserts|{rule.operator}"]
    kind = f"{rule.when}:" if rule.when in _KINDS else ""
    whats = [f"{kind}{dtype}" for dtype in rule.dtypes.split()] or [rule.when or "any"]
    return [f"rules|{rule.operator}|{what}" for what in whats]


def _rows(of: Key, verdicts: tuple[str, ...], calls: dict[str, set[str]]) -> list[str]:
    exact = [
        f"{rule.operator} ({rule.verdict})" for rule in rules.rows() if of.key in keys_of(rule)
    ]
    if exact:
        return exact
    name, _, dtype = of.key.partition("|")[2].partition("|")
    overloads = calls.get(name, set()) | {f"aten::{name}"}
    return [
        f"{rule.operator} ({rule.verdict})"
        for rule in rules.rows()
        if rule.operator in overloads
        and rule.verdict in verdicts
        and rule.when not in _KINDS
        and (not dtype or not rule.dtypes or dtype in rule.dtypes.split())
    ]


_RULES = {
    "accepts": ("refuse", "unavailable", "widen", "keep", "statistics", "fft", "sum_of_numbers"),
    "refusals": ("refuse", "unavailable"),
    "alerts": ("nondeterministic",),
    "asserts": ("asserts",),
    "rows": (),
}
_MAKERS = {
    "identity": "the specification",
    "warnings": "csrc/aten, the operator's warnings",
    "waits": "torch_npusim/sim/synchronisation.py",
    "captures": "csrc/runtime/graph.h",
    "placements": "allocator/config.cpp, the preset",
    "counters": "allocator/stats.h under the preset",
    "temporaries": "csrc/aten, the memory that the operator's kernel takes",
    "saved": "csrc/aten, which operator runs below autograd",
    "outside": "backend/memory.h: the context and libraries take nothing",
    "kernels": "csrc/launch: one command per operator",
    "peaks": "csrc/aten, memory of the step's operators",
    "step lists": "csrc/aten, memory of the step's operators",
    "offsets": "csrc/aten, rule R2",
    "step times": "csrc/cost, the specification and the host of specs/hosts",
    "names": "torch_npusim/cuda_alias",
    "answers": "torch_npusim/cuda_alias",
    "orders": "backend/stream.h, rules S and E",
    "collectives": "backend/fabric.h and the fabric",
    "reach": "backend/fabric.h",
}
_NUMBERS = {
    "mm": "achievable.matmul, peak_tflops", "conv": "achievable.convolution, peak_tflops",
    "sdpa": "achievable.attention, peak_tflops", "stream": "memory.bandwidth_gb_s, "
    "achievable.bandwidth", "gap": "the host of specs/hosts", "copy": "link, latency_us.copy_floor",
}  # fmt: skip


def _row(of: Key, kind: str, calls: dict[str, set[str]], ours: Recording) -> str:
    if kind in _RULES:
        found = _rows(of, _RULES[kind], calls)
        return "cuda_rules.csv: " + ("; ".join(found) if found else "no row")
    if kind == "rates":
        numbers = _NUMBERS.get(of.key.partition("|")[0], "")
        return f"specification {ours.chip}: {numbers}"
    return _MAKERS[kind]


# --- What the rule book was asked


def rows_asked(theirs: Recording) -> tuple[int, int, int]:
    """Returns how many rows the rule book has, how many a recording asks, how many none can ask."""
    answers = theirs.answers.get("acceptance", {})
    rows = [rule for rule in rules.rows() if not is_heard(rule)]
    asked = sum(any(key in answers for key in keys_of(rule)) for rule in rows)
    return len(rows), asked, sum(rule.operator in NOT_ASKED for rule in rows)


def disagreements(verdicts: list[Verdict]) -> list[str]:
    """Returns a line per disagreement: class, section and key, sorted.

    A claim that cannot be compared has "not comparable: " before it, and the reason behind it.
    """
    lines = []
    for v in verdicts:
        line = f"{v.kind}: {v.of.section}|{v.of.key}"
        if v.incomparable:
            lines.append(f"{NOT_COMPARABLE}: {line} ({v.incomparable})")
        elif not v.agrees and not v.version:
            lines.append(line)
    return sorted(lines)


#: The class of lines about questions without an answer that both sides could give.
NOT_COMPARABLE = "not comparable"


def write_csv(path: str, verdicts: list[Verdict]) -> None:
    """Writes a row per claim."""
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            ["section", "key", "class", "agrees", "held out", "device", "npusim", "row"]
        )
        for v in verdicts:
            place = (v.of.section, v.of.key, v.kind, int(v.agrees), int(v.is_held_out))
            writer.writerow([*place, v.theirs, v.ours, v.row])
