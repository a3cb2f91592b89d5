# SPDX-License-Identifier: BSD-3-Clause
"""Calls every overload of torch.ops.aten with unusual tensors, to find calls that end the process.

One forked child for each overload; this process never touches the device. A call that ends the
child is made again alone, then on the CPU: what the CPU survives is the device's own.
"""

import os
import pickle
import signal
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from npusim_conformance.case import Case
from npusim_conformance.fuzz import upstream_issues
from npusim_conformance.fuzz.arguments import overloads
from npusim_conformance.fuzz.children import (
    Ending,
    Examination,
    Experiment,
    Limits,
    Texts,
    conduct,
)
from npusim_conformance.fuzz.seeds import Corpus, Seeds, record
from npusim_conformance.inputs import torch_testing
from npusim_conformance.verdict import Outcome, Status

DEATHS_MAX = 4  # of one overload; the rest would only cost time
CHUNK = 24  # operators that one child records
RECORD_SECONDS = 300
CPU = "cpu"


def case_name(overload: str) -> str:
    """The name in the log, as "aten:add.Tensor/direct"."""
    return str(Case("aten", overload, "direct"))


@dataclass
class Death:
    """A call that ended the process."""

    call: int
    how: str
    lines: list[str]
    on_cpu: str  # how it ended there, or nothing
    needs: list[str] = field(default_factory=list)  # the call before it, where it needs one

    @property
    def is_own(self) -> bool:
        """Whether the device alone is at fault."""
        return not self.on_cpu


class Fuzzer:
    """Examines overloads on a device whose backend is loaded, and not used, in this process."""

    traps: tuple[str, ...] = ()

    def __init__(
        self,
        device: str,
        import_name: str,
        corpus: Corpus,
        count: int,
        jobs: int = 1,
        limits: Limits | None = None,
    ) -> None:
        self.device = device
        self.import_name = import_name
        self.corpus = corpus
        self.count = count
        self.jobs = jobs
        self.limits = limits or Limits()

    def machine(self) -> dict[str, Any]:
        """Nothing differs: calls are made on this machine."""
        return {}

    def run(self, names: Iterable[str], before: Iterable[Outcome] = ()) -> Iterator[Outcome]:
        """Outcomes of cases by name, as they come; earlier outcomes are not tried again."""
        del before
        _import_what_meta_calls_need()
        examinations = (self._examine(Case.parse(name).subject) for name in names)
        yield from conduct(examinations, self.jobs, self.limits)

    def _examine(self, overload: str) -> Examination:
        why = overloads()[overload]
        if why:
            return Outcome(case_name(overload), Status.NA, why)
        calls = self.corpus.calls(overload, self.count)
        texts = [call.lines(number) for number, call in enumerate(calls)]
        seen = _Seen(overload)
        first = 0
        while first < len(texts) and len(seen.deaths) < DEATHS_MAX:
            ending = yield Experiment(texts[first:], self.device)
            seen.returned += ending.returned
            seen.raised += ending.raised
            if not ending.how:
                break
            # A child that ends after its calls is told by the last of them.
            at = min(first + max(0, ending.call), len(texts) - 1)
            if ending.how == "memory":
                seen.too_large += 1
            else:
                seen.deaths.append((yield from self._examine_death(texts, first, at, ending)))
            first = at + 1
        return self._outcome(seen)

    def _examine_death(self, texts: Texts, first: int, at: int, ending: Ending) -> Examination:
        """The calls that a death needs, and whether the CPU dies of them."""
        needed: Texts = [texts[at]]
        if ending.how == "timeout":
            on_cpu = "" if self.device == CPU else (yield Experiment(needed, CPU)).how
            return Death(at, ending.how, texts[at], on_cpu)
        alone = yield Experiment(needed, self.device)
        if not alone.how:  # what an earlier call broke
            needed = texts[first : at + 1]
            for before in range(at - 1, first - 1, -1):
                pair = [texts[before], texts[at]]
                if (yield Experiment(pair, self.device)).how:
                    needed = pair
                    break
        on_cpu = yield from self._on_cpu(needed)
        before_it = [line for lines in needed[:-1] for line in lines]
        return Death(at, (alone.how or ending.how), texts[at], on_cpu, before_it)

    def _on_cpu(self, needed: Texts) -> Examination:
        """How the CPU ends with these calls, or nothing.

        The CPU may survive because the memory beside its operands happens to be its own: then it
        dies as soon as that is fenced off.
        """
        if self.device == CPU:
            return ""
        plain = yield Experiment(needed, CPU)
        if plain.how:
            return plain.how
        fenced = yield Experiment([lines for call in needed for lines in (call, call)], CPU, True)
        return f"{fenced.how} outside of its operands" if fenced.is_signal else ""

    def _outcome(self, seen: "_Seen") -> Outcome:
        own = [death for death in seen.deaths if death.is_own]
        status = Status.UPSTREAM if seen.deaths else Status.PASS
        if own:
            hung = all(death.how == "timeout" for death in own)
            status = Status.TIMEOUT if hung else Status.CRASH
        executed = seen.returned + seen.raised + seen.too_large + len(seen.deaths)
        outcome = Outcome(case_name(seen.overload), status, seen.text(), samples=executed)
        outcome.failed_samples = [death.call for death in own]
        outcome.upstream_samples = len(seen.deaths) - len(own)
        if seen.deaths:
            shown = own or seen.deaths
            worst = next((death for death in shown if death.how != "timeout"), shown[0])
            number = upstream_issues.issue(seen.overload, worst.on_cpu)
            known = f"; pytorch/pytorch {number}" if number else ""
            beside = f", on the CPU too ({worst.on_cpu}{known})" if worst.on_cpu else ""
            outcome.message = f"{worst.how} in call {worst.call}{beside}; {outcome.message}"
            outcome.cause = f"{worst.how}: {seen.overload}"
            outcome.culprit = f"aten::{seen.overload}"
            outcome.repro = script(worst, self.device, self.import_name)
        return outcome


@dataclass
class _Seen:
    """The results of the calls of one overload."""

    overload: str
    deaths: list[Death] = field(default_factory=list)
    returned: int = 0
    raised: int = 0
    too_large: int = 0  # ended for the memory that it touched, which is no fault

    def text(self) -> str:
        large = f", {self.too_large} too large" if self.too_large else ""
        return f"{self.returned} returned, {self.raised} raised{large}"


def script(death: Death, device: str, import_name: str) -> str:
    """The call in plain PyTorch."""
    head = f"import torch, {import_name}" if import_name else "import torch"
    last = "torch.utils._pytree.tree_map_only(torch.Tensor, torch.Tensor.clone, result)"
    return "\n".join([head, f'device = torch.device("{device}")', *death.needs, *death.lines, last])


def _import_what_meta_calls_need() -> None:
    """Imports, once for all children, the modules that torch loads with the first such call."""
    tensor = torch.empty(2, device="meta")
    for function in (torch.asinh, torch.randn_like, lambda x: x & x, lambda x: x.view(3)):
        with suppress(Exception):
            function(tensor)


def seeds_of(path: Path, seed: int, jobs: int) -> Seeds:
    """The seeds that a run recorded before, or that are recorded now, into `path`."""
    if path.exists():
        kept: Seeds = pickle.loads(path.read_bytes())
        return kept
    operators = list(torch_testing.operators())
    chunks = [operators[first : first + CHUNK] for first in range(0, len(operators), CHUNK)]
    seeds: Seeds = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="npusim-conformance-") as directory:
        files = [Path(directory, str(number)) for number in range(len(chunks))]
        children: list[int] = []
        for chunk, file in zip(chunks, files, strict=True):
            while len(children) >= jobs:
                os.waitpid(children.pop(0), 0)
            children.append(_recording_child(chunk, seed, file))
        for child in children:
            os.waitpid(child, 0)
        for file in files:
            recorded: Seeds = pickle.loads(file.read_bytes()) if file.exists() else {}
            for overload, calls in recorded.items():
                seeds[overload] += [call for call in calls if call not in seeds[overload]]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(dict(seeds)))
    return dict(seeds)


def _recording_child(operators: list[str], seed: int, file: Path) -> int:
    child = os.fork()
    if child:
        return child
    try:
        signal.alarm(RECORD_SECONDS)
        warnings.simplefilter("ignore")
        file.write_bytes(pickle.dumps(record(operators, seed)))
    finally:
        os._exit(0)
