# SPDX-License-Identifier: BSD-3-Clause
"""The expectations file: what the author of a backend declares about it, in one TOML file.

    [device]
    name = "mychip"                # as in torch.device(name)
    import = "torch_mychip"        # module to import, after torch
    compare = "tolerance"          # or "bitwise": values must have the CPU's bits
    generator = "own"              # or "cpu": random values equal the CPU's for equal seeds
    fallback_hook = "torch_mychip:fallback_counts"  # () -> {overload: calls computed by the CPU}
    native = ["op:add"]            # subjects that must not fall back, where there is a hook
    allocated_hook = "torch_mychip:bytes"           # (index) -> int; default memory_allocated

    [dtypes]                       # dtypes outside these are n/a; default: all of the CPU's
    unsupported = ["complex32"]
    [dtypes.operators]
    "linalg.*" = ["float32", "float64"]

    [[tolerance]]                  # without rtol and atol: torch.testing's, instead of equal bits
    cases = ["op:nn.functional.layer_norm/*"]
    rtol = 1e-4
    atol = 1e-5
    reason = "sums in another order"

    [[xfail]]                      # fails today; a pass fails the run
    cases = ["op:istft/backward/complex64"]
    reason = "..."
    issue = "https://..."

    [[skip]]                       # never executed
    cases = ["op:foo/*"]
    reason = "..."

Patterns are globs on names of cases. Unknown keys, and patterns that match no case of the catalog,
are errors: an expectations file cannot rot unseen.
"""

import fnmatch
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from npusim_conformance.verdict import FAILED, PASSED, Outcome, Status


class ExpectationsError(ValueError):
    """The file does not say what it should; the message names file, place and remedy."""


@dataclass(frozen=True)
class Rule:
    """One entry of [[xfail]], [[skip]] or [[tolerance]]."""

    cases: tuple[str, ...]
    reason: str
    issue: str = ""
    rtol: float | None = None
    atol: float | None = None
    _pattern: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        alternatives = "|".join(fnmatch.translate(pattern) for pattern in self.cases)
        object.__setattr__(self, "_pattern", re.compile(alternatives))

    def to_data(self) -> dict[str, Any]:
        """The entry as it stands in a file."""
        data: dict[str, Any] = {
            "cases": list(self.cases),
            "reason": self.reason,
            "issue": self.issue,
        }
        data |= {"rtol": self.rtol, "atol": self.atol}
        return {key: value for key, value in data.items() if value not in ("", None)}

    def matches(self, case: str) -> bool:
        """Whether one of the globs matches the name of a case."""
        return self._pattern.match(case) is not None


@dataclass(frozen=True)
class DtypeRule:
    """Operators whose names match the glob support these dtypes only."""

    operators: str
    dtypes: tuple[str, ...]


@dataclass(frozen=True)
class Expectations:
    """The declarations of a file; the default declares nothing."""

    device: str = ""
    import_name: str = ""
    bitwise: bool = False
    cpu_generator: bool = False
    fallback_hook: str = ""
    allocated_hook: str = ""
    native: tuple[str, ...] = ()
    unsupported_dtypes: tuple[str, ...] = ()
    dtype_rules: tuple[DtypeRule, ...] = ()
    tolerance: tuple[Rule, ...] = ()
    xfail: tuple[Rule, ...] = ()
    skip: tuple[Rule, ...] = ()

    def to_data(self) -> dict[str, Any]:
        """The data from which parse() makes these expectations."""
        device = {
            "name": self.device,
            "import": self.import_name,
            "compare": "bitwise" if self.bitwise else "tolerance",
            "generator": "cpu" if self.cpu_generator else "own",
            "fallback_hook": self.fallback_hook,
            "allocated_hook": self.allocated_hook,
            "native": list(self.native),
        }
        operators = {rule.operators: list(rule.dtypes) for rule in self.dtype_rules}
        dtypes = {"unsupported": list(self.unsupported_dtypes), "operators": operators}
        rules = {
            name: [rule.to_data() for rule in getattr(self, name)]
            for name in ("tolerance", "xfail", "skip")
        }
        return {"device": device, "dtypes": dtypes, **rules}

    def unsupported(self, subject: str, dtype: str | None) -> str:
        """Why the backend does not claim this dtype, or nothing."""
        if dtype is None:
            return ""
        if dtype in self.unsupported_dtypes:
            return f"the backend does not claim {dtype}"
        for rule in self.dtype_rules:
            if fnmatch.fnmatchcase(subject, rule.operators) and dtype not in rule.dtypes:
                return f"the backend does not claim {dtype} for {rule.operators}"
        return ""

    def skipped(self, case: str) -> str:
        """The reason not to run a case, or nothing."""
        return _reason(self.skip, case)

    def tolerances(self, case: str) -> tuple[float | None, float | None] | None:
        """(rtol, atol) declared for a case."""
        rule = _first(self.tolerance, case)
        return (rule.rtol, rule.atol) if rule else None

    def must_be_native(self, subject: str) -> bool:
        """Whether `kind:subject` was declared to run without the CPU."""
        return any(fnmatch.fnmatchcase(subject, pattern) for pattern in self.native)

    def judge(self, outcome: Outcome) -> Outcome:
        """The outcome with XFAIL or XPASS where the file expects a failure."""
        rule = _first(self.xfail, outcome.case)
        if rule is None:
            return outcome
        because = f"{rule.reason} ({rule.issue})" if rule.issue else rule.reason
        if outcome.status in FAILED or outcome.status is Status.FLAKE:
            return replace(outcome, status=Status.XFAIL, message=f"{because}: {outcome.message}")
        if outcome.status in PASSED:
            message = f"passed, but is expected to fail: {because}. Remove the expectation."
            return replace(outcome, status=Status.XPASS, message=message)
        return outcome

    def check_patterns(self, names: Iterable[str], source: str) -> None:
        """Raises ExpectationsError for patterns that match none of the catalog's names."""
        everything = list(names)
        for section, rules in (
            ("xfail", self.xfail),
            ("skip", self.skip),
            ("tolerance", self.tolerance),
        ):
            for rule in rules:
                for pattern in rule.cases:
                    compiled = re.compile(fnmatch.translate(pattern))
                    if not any(compiled.match(name) for name in everything):
                        raise ExpectationsError(
                            f"{source}: [[{section}]] names {pattern!r}, which is no case of this "
                            "kit. `npusim-conformance list` prints all names; remove or mend it."
                        )


def _first(rules: tuple[Rule, ...], case: str) -> Rule | None:
    return next((rule for rule in rules if rule.matches(case)), None)


def _reason(rules: tuple[Rule, ...], case: str) -> str:
    rule = _first(rules, case)
    return rule.reason if rule else ""


def load(path: str | Path | None) -> Expectations:
    """Reads a file; without one, the empty expectations.

    Raises ExpectationsError, or OSError where the file cannot be read.
    """
    if path is None:
        return Expectations()
    try:
        return parse(tomllib.loads(Path(path).read_text()), str(path))
    except tomllib.TOMLDecodeError as error:
        raise ExpectationsError(f"{path}: not TOML: {error}") from error


_DEVICE_KEYS = {
    "name": str,
    "import": str,
    "compare": str,
    "generator": str,
    "fallback_hook": str,
    "allocated_hook": str,
    "native": list,
}


def parse(data: dict[str, Any], source: str) -> Expectations:
    """Expectations from parsed TOML; `source` names it in errors."""
    _only_keys(data, {"device", "dtypes", "tolerance", "xfail", "skip"}, source)
    device = data.get("device", {})
    _only_keys(device, set(_DEVICE_KEYS), f"{source}: [device]")
    for key, value in device.items():
        if not isinstance(value, _DEVICE_KEYS[key]):
            raise ExpectationsError(
                f"{source}: [device] {key} = {value!r}; expected a {_DEVICE_KEYS[key].__name__}"
            )
    compare = _one_of(device, "compare", ("tolerance", "bitwise"), source)
    generator = _one_of(device, "generator", ("own", "cpu"), source)
    dtypes = data.get("dtypes", {})
    _only_keys(dtypes, {"unsupported", "operators"}, f"{source}: [dtypes]")
    return Expectations(
        device=device.get("name", ""),
        import_name=device.get("import", ""),
        bitwise=compare == "bitwise",
        cpu_generator=generator == "cpu",
        fallback_hook=device.get("fallback_hook", ""),
        allocated_hook=device.get("allocated_hook", ""),
        native=tuple(device.get("native", ())),
        unsupported_dtypes=tuple(dtypes.get("unsupported", ())),
        dtype_rules=tuple(
            DtypeRule(operators, tuple(names))
            for operators, names in dtypes.get("operators", {}).items()
        ),
        tolerance=_rules(data, "tolerance", {"cases", "rtol", "atol", "reason"}, source),
        xfail=_rules(data, "xfail", {"cases", "reason", "issue"}, source),
        skip=_rules(data, "skip", {"cases", "reason", "issue"}, source),
    )


def _only_keys(table: dict[str, Any], known: set[str], where: str) -> None:
    unknown = sorted(set(table) - known)
    if unknown:
        raise ExpectationsError(f"{where}: unknown key {unknown[0]!r}; known: {sorted(known)}")


def _one_of(table: dict[str, Any], key: str, values: tuple[str, ...], source: str) -> str:
    value: str = table.get(key, values[0])
    if value not in values:
        raise ExpectationsError(f"{source}: [device] {key} = {value!r}; expected one of {values}")
    return value


def _rules(data: dict[str, Any], section: str, known: set[str], source: str) -> tuple[Rule, ...]:
    rules = []
    for number, entry in enumerate(data.get(section, []), 1):
        where = f"{source}: [[{section}]] number {number}"
        if not isinstance(entry, dict):
            raise ExpectationsError(f"{where}: expected a table with cases and reason")
        _only_keys(entry, known, where)
        for key in ("cases", "reason"):
            if not entry.get(key):
                raise ExpectationsError(f"{where}: {key} is missing; nothing is expected unsaid")
        cases = entry["cases"]
        rules.append(
            Rule(
                cases=(cases,) if isinstance(cases, str) else tuple(cases),
                reason=entry["reason"],
                issue=entry.get("issue", ""),
                rtol=entry.get("rtol"),
                atol=entry.get("atol"),
            )
        )
    return tuple(rules)
