# SPDX-License-Identifier: BSD-3-Clause
"""A worker: loads the backend and executes the cases that the runner names, one after the other."""

import faulthandler
import gc
import json
import os
import pickle
import signal
import sys
import time
import traceback
import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from npusim_conformance.backend import census
from npusim_conformance.backend.device import DeviceUnderTest, DeviceUnusable
from npusim_conformance.backend.expectations import Expectations
from npusim_conformance.case import Case
from npusim_conformance.cases import catalog
from npusim_conformance.cases.contract_property import contract_script
from npusim_conformance.inputs import torch_testing
from npusim_conformance.inputs.samples import SampleSource
from npusim_conformance.judge import attribution, plain_python
from npusim_conformance.judge.agreement import Agreement
from npusim_conformance.judge.diagnosis import NO_DTYPE, diagnose
from npusim_conformance.processes import lead_session, resident_bytes
from npusim_conformance.properties.base import Run
from npusim_conformance.run import watching
from npusim_conformance.run.current_case import CallInFlight, Flight
from npusim_conformance.upstream import collection, execution
from npusim_conformance.verdict import PASSED, Mismatch, NotApplicable, Outcome, Status


@dataclass(frozen=True)
class WorkerConfig:
    """The settings of every worker of a run."""

    device: str
    import_name: str
    expectations: Expectations
    seed: int = 0
    samples_max: int | None = None
    threads: int = 1
    mends_copies: bool = False  # asks what remains without the trap of _copy_from
    watch: str = ""  # "calls": each of an overload is told before it is made; "samples": each
    upstream_root: str = ""  # of the files of upstream cases
    warm_up_seconds: float = 0.0  # for a first execution of each case, which is not timed
    memory_limit_bytes: int = 2 << 30  # a worker that holds more is replaced after its batch
    memory_max_bytes: int = 0  # a case that makes it hold more is ended; 0: see Runner


class Worker:
    """Executes cases in this process. Raises DeviceUnusable where the backend does not load."""

    def __init__(self, config: WorkerConfig, flight: Flight | None = None) -> None:
        self.config = config
        self.flight = flight
        torch.set_num_threads(config.threads)
        if config.upstream_root:
            collection.prepare_environment(config.device)
        warnings.simplefilter("ignore")
        self.under_test = DeviceUnderTest(config.device, config.import_name, config.expectations)
        if config.mends_copies:
            census.mend_copies()
        self.source = SampleSource(config.seed, config.samples_max)

    def execute(self, name: str) -> Outcome:
        """Runs one case and returns what came of it; raises only what ends a process."""
        if self.config.upstream_root:  # once; loading a file is not part of its first test's time
            subject = Case.parse(name).subject
            collection.load(self.config.upstream_root, subject, self.under_test.device.type)
        ahead = self.config.warm_up_seconds
        outcome = self._timed(name, ahead)
        if ahead and outcome.status in PASSED:  # what it calls is compiled now
            outcome = self._timed(name)
        self._land()
        return outcome

    def _timed(self, name: str, ahead: float = 0.0) -> Outcome:
        """Runs one case, whose time begins so many seconds from now."""
        if self.flight is not None:
            self.flight.begin(name, ahead)
        started = time.perf_counter()
        outcome = self._execute(name)
        outcome.seconds = round(time.perf_counter() - started, 6)
        return outcome

    def _land(self) -> None:
        """Ends the time of the case in flight."""
        if self.flight is not None:
            self.flight.end()

    def _execute(self, name: str) -> Outcome:
        expectations = self.config.expectations
        case = Case.parse(name)
        reason = expectations.skipped(name)
        if reason:
            return Outcome(name, Status.SKIPPED, reason)
        if case.kind == "upstream":
            return execution.execute(
                case, self.config.upstream_root, self.under_test.device.type, self._land
            )
        prop, subject, dtype = catalog.resolve(case)
        reason = (
            subject.excluded()
            or expectations.unsupported(subject.name, case.dtype)
            or prop.applies(subject, dtype)
        )
        if reason:
            return Outcome(name, Status.NA, reason)
        declared = expectations.tolerances(name)
        agreement = Agreement(
            expectations.bitwise and declared is None,
            *(declared or (None, None)),
            amplifies=torch_testing.is_normalisation(subject.name),
            elementwise=torch_testing.is_elementwise(subject.info),
        )
        at_sample = partial(self._at_sample, name)
        run = Run(case, subject, dtype, self.under_test, agreement, self.source, at_sample)
        self._restore_defaults(run)
        before = self.under_test.fallbacks()
        try:
            with self._watched():
                prop.check(run)
        except NotApplicable as reason:
            return Outcome(name, Status.NA, str(reason))
        except Exception as error:
            outcome = _failure(run, error, traceback.format_exc(limit=-6))
        else:
            outcome = _success(run)
            self._attribute(outcome, run)
        self._note_fallbacks(outcome, run, before)
        return outcome

    def _at_sample(self, name: str, index: int, examine: Any) -> None:
        """Notes the sample in flight; under watch with its script, should no call be told."""
        if self.flight is None:
            return
        self.flight.at_sample(index)
        if self.config.watch:
            script, overload = self.script_of(name, index, examine), ""
            if self.config.watch == "samples":
                overload = _overload_of(Case.parse(name).subject)
            CallInFlight(overload, "", f"a call of {overload}", script).write(self.flight.path)

    def _watched(self) -> AbstractContextManager[Any]:
        """Tells each call before it is made, if so configured: it may be the last."""
        if self.config.watch != "calls" or self.flight is None:
            return nullcontext()
        under_test = self.under_test
        return watching.Teller(under_test.device, under_test.import_name, self.flight.path)

    def _attribute(self, outcome: Outcome, run: Run) -> None:
        """Says what is at fault, and writes the failing call down."""
        if not run.failures:
            return
        first = run.failures[0]
        if getattr(first.error, "is_cause", False):
            outcome.cause = outcome.message
        else:
            self._find_culprit(outcome, run)
        if not outcome.repro:
            outcome.repro = self.script_of(str(run.case), first.index, first.examine)

    def _find_culprit(self, outcome: Outcome, run: Run) -> None:
        """Says which overload is at fault, if one is."""
        first = run.failures[0]
        run.reseed()
        found = attribution.find(
            first.examine, run.device, self.under_test.import_name, run.agreement.bitwise
        )
        if found is not None:
            outcome.culprit = found.overload
            outcome.repro = found.script
            if not outcome.missing and not outcome.cause.startswith(NO_DTYPE):
                kind = type(first.error).__name__ if found.fault == "raises" else found.fault
                outcome.cause = f"{found.overload}: {kind}"
        elif isinstance(first.error, Mismatch) and run.case.kind != "contract":
            outcome.cause = f"{run.subject.name}: {outcome.cause}"  # wrong in its own way

    def script_of(self, name: str, index: int = 0, asked: Any = None) -> str:
        """One sample of an operator's case as plain Python, or nothing where there is none.

        `asked` is the question that failed, if it was a property's calls.Part.
        """
        case = Case.parse(name)
        if case.kind == "contract":
            contract, _, _ = catalog.resolve(case)
            under_test = self.under_test
            return contract_script(contract, under_test.name, under_test.import_name)
        if case.kind != "op" or case.dtype is None:
            return ""
        _, subject, dtype = catalog.resolve(case)
        assert dtype is not None
        backward = case.property == "backward" or getattr(asked, "backward", False)
        try:
            samples = self.source.get(subject, dtype, backward)
            other = asked.sample() if getattr(asked, "sample", None) else None
        except Exception:  # in torch's own code: there is nothing to write down
            return ""
        for sample in samples:
            if sample.index == index:
                device, import_name = self.under_test.device, self.under_test.import_name
                into = getattr(asked, "into", "")
                shown = other or sample
                script = plain_python.sample_script(shown, device, import_name, backward, into)
                shows = into or other or case.property in ("forward", "backward")
                if script and not shows:
                    script = (
                        f"# The sample; what `{case.property}` asks of it comes on top.\n{script}"
                    )
                return script
        return ""

    def _restore_defaults(self, run: Run) -> None:
        torch.set_grad_enabled(True)
        torch.set_default_dtype(torch.float32)
        torch.use_deterministic_algorithms(False)
        run.reseed()

    def _note_fallbacks(self, outcome: Outcome, run: Run, before: object) -> None:
        if not (self.under_test.knows_fallbacks or run.fallbacks):
            return
        assert isinstance(before, dict)
        after = self.under_test.fallbacks()
        counted = {name for name, count in after.items() if count > before.get(name, 0)}
        outcome.fallbacks = sorted(counted | run.fallbacks)
        outcome.native = not outcome.fallbacks
        if outcome.status is Status.PASS and outcome.fallbacks:
            outcome.status = Status.FALLBACK_PASS


def _overload_of(subject: str) -> str:
    """The name that aten has for an operator of torch's database, or nothing."""
    name = subject.removeprefix("nn.functional.").replace(".", "_")
    return f"aten::{name}" if hasattr(torch.ops.aten, name) else ""


def _success(run: Run) -> Outcome:
    name = str(run.case)
    if run.failures:
        first = run.failures[0]
        outcome = _failure(run, first.error, first.trace)
        indices = [failure.index for failure in run.failures if failure.index >= 0]
        outcome.failed_samples = list(dict.fromkeys(indices))
        return outcome
    if run.executed == 0:
        reason = run.not_applicable or "no sample input that the property concerns"
        return Outcome(name, Status.NA, reason)
    status = Status.UPSTREAM if run.executed == run.upstream else Status.PASS
    return Outcome(
        name,
        status,
        run.upstream_message or run.note,
        samples=run.executed,
        upstream_samples=run.upstream,
        error=run.agreement.largest,
    )


def _failure(run: Run, error: BaseException, trace: str) -> Outcome:
    found = diagnose(error)
    of_dtype = found.cause == NO_DTYPE and run.case.dtype
    return Outcome(
        str(run.case),
        found.status,
        found.message,
        detail=trace,
        cause=f"{NO_DTYPE}: {run.case.dtype}" if of_dtype else found.cause,
        missing=found.missing,
        samples=run.executed,
        upstream_samples=run.upstream,
        error=getattr(error, "error", None) or run.agreement.largest,
    )


def traps_of(worker: Worker) -> list[str]:
    """Registrations of the backend that are known to break much, as sentences."""
    if worker.config.upstream_root:
        return []
    found = census.open_traps(worker.under_test.device)
    return [f"{trap.name}: {trap.hint}" for trap in found]


def serve(
    config: WorkerConfig, read_fd: int, write_fd: int, directory: Path, number: int, parent: int
) -> None:
    """The life of a worker: batches of names come in, outcomes go out, as JSON lines.

    Ends when the runner closes its end, or by itself, saying so, when it holds too much memory.
    """
    lead_session(parent)
    stderr = open(directory / f"worker-{number}.stderr", "w")
    os.dup2(stderr.fileno(), 1)
    os.dup2(stderr.fileno(), 2)
    faulthandler.enable(stderr)
    faulthandler.register(signal.SIGUSR1, stderr)
    answers = os.fdopen(write_fd, "w", buffering=1)
    requests = os.fdopen(read_fd)

    def answer(record: object) -> None:
        answers.write(json.dumps(record) + "\n")

    try:
        worker = Worker(config, Flight(directory / f"worker-{number}.flight"))
    except DeviceUnusable as error:
        answer({"unusable": str(error)})
        return
    gc.freeze()  # what is loaded stays; collections look at the rest
    answer({"ready": True, "traps": traps_of(worker)})
    for line in requests:
        for name in json.loads(line):
            answer(worker.execute(name).to_json())
        gc.collect()
        gc.freeze()  # samples and tables that are kept need not be looked through after each batch
        if resident_bytes(os.getpid()) > config.memory_limit_bytes:
            answer({"leaving": True})
            return
        answer({"ready": True})


def main() -> None:
    """Entry of a spawned worker: its configuration comes pickled on stdin."""
    serve(*pickle.load(sys.stdin.buffer))


if __name__ == "__main__":
    main()
