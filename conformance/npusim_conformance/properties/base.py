# SPDX-License-Identifier: BSD-3-Clause
"""The base classes of properties, and the Run that a property works with.

A property is a class with a name, the profiles that it belongs to and a check. Most look at one
sample after the other: derive from SampleProperty and write examine(), which raises where the
device is wrong. A failure is tried again with the CPU as the device: a failure there too is
not the device's fault, and counts as upstream.
"""

import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

import torch

from npusim_conformance.backend.device import CPU, DeviceUnderTest
from npusim_conformance.case import SAMPLES_MAX, Case
from npusim_conformance.inputs.samples import Sample, SampleSource
from npusim_conformance.inputs.subjects import Subject, subjects
from npusim_conformance.judge.agreement import Agreement
from npusim_conformance.verdict import Mismatch, NotApplicable

FAILURES_MAX = 5  # per case; the rest would only cost time


class Dtypes(Enum):
    """Which dtypes of a subject a property is checked for."""

    ALL = "all that the CPU supports"
    DEFAULT = "float32, or the first that the CPU supports"
    DEFAULT_AND_COMPLEX = "the default, and one complex dtype beside it"
    DIFFERENTIABLE = "all with a gradient on the CPU"
    DEFAULT_DIFFERENTIABLE = "float32, or the first with a gradient"
    FLOAT64 = "float64"
    NONE = "no dtype in the name"


@dataclass
class SampleFailure:
    """The failure of one sample."""

    index: int
    error: BaseException
    trace: str
    examine: Callable[[torch.device], None]


@dataclass
class Run:
    """One case being checked. Holds what a property needs, and collects what it finds."""

    case: Case
    subject: Subject
    dtype: torch.dtype | None
    under_test: DeviceUnderTest
    agreement: Agreement
    source: SampleSource
    # Tells the runner the sample's index and what is asked of it, in case of a crash.
    at_sample: Callable[[int, Callable[[torch.device], None]], None] = lambda index, examine: None
    executed: int = 0
    upstream: int = 0
    upstream_message: str = ""
    note: str = ""  # what a passing case has to say
    not_applicable: str = ""  # why the first sample that was passed over was
    failures: list[SampleFailure] = field(default_factory=list)
    fallbacks: set[str] = field(default_factory=set)  # that torch warned of, beside the hook's

    @property
    def device(self) -> torch.device:
        """The device under test."""
        return self.under_test.device

    @property
    def seed(self) -> int:
        """The seed of the whole run."""
        return self.source.seed

    @property
    def is_short(self) -> bool:
        """Whether this is a run of the profile smoke, which asks less of what costs most."""
        short = SAMPLES_MAX["smoke"] or 0
        return self.source.maximum is not None and self.source.maximum <= short

    def samples(
        self, requires_grad: bool = False, dtype: torch.dtype | None = None
    ) -> list[Sample]:
        """The sample inputs of an operator case, for its dtype or another."""
        wanted = dtype or self.dtype
        assert wanted is not None
        try:
            return self.source.get(self.subject, wanted, requires_grad)
        except Exception as error:  # on the CPU, in torch's own code
            raise NotApplicable(f"torch's database gives no samples: {error}") from error

    def few(
        self, maximum: int, requires_grad: bool = False, dtype: torch.dtype | None = None
    ) -> list[Sample]:
        """At most `maximum` of samples(), spread evenly; more where the run wants all of them."""
        samples = self.samples(requires_grad, dtype)
        if self.source.maximum is None:
            maximum *= 8
        if len(samples) <= maximum:
            return samples
        return [samples[number * len(samples) // maximum] for number in range(maximum)]

    def reseed(self) -> None:
        """Seeds the CPU's generator and the device's."""
        torch.default_generator.manual_seed(self.seed)
        self.under_test.seed(self.seed)

    def attempt(self, index: int, examine: Callable[[torch.device], None]) -> None:
        """Runs examine(device) and records what it raises; see the head of this file."""
        self.at_sample(index, examine)
        try:
            examine(self.device)
            self.executed += 1
        except NotApplicable as reason:
            self.not_applicable = self.not_applicable or str(reason)
            return
        except Exception as error:
            self.executed += 1
            if self._fails_on_cpu(examine, error):
                self.upstream += 1
                return
            self.failures.append(
                SampleFailure(index, error, traceback.format_exc(limit=-4), examine)
            )
            error.__traceback__ = None  # it holds tensors alive

    def _fails_on_cpu(self, examine: Callable[[torch.device], None], error: Exception) -> bool:
        try:
            if not self.under_test.is_cpu:
                examine(CPU)
                return False
        except NotApplicable:
            return False
        except Exception as same:
            error = same
        if isinstance(error, NameError) and _is_raised_here(error):
            raise RuntimeError(f"a mistake of the kit, not of the device: {error}") from error
        self.upstream_message = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
        return True


def _is_raised_here(error: Exception) -> bool:
    """Whether a line of the kit raised it, and not something that the kit called."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__")).split(".")[0] == __name__.split(".")[0]


def in_profiles(**dtypes: Dtypes) -> Mapping[str, Dtypes]:
    """in_profiles(smoke=..., standard=..., full=...): left out means not in that profile."""
    return dtypes


class Property(ABC):
    """A check of one kind of subject. Instances have no state."""

    name: ClassVar[str]
    kind: ClassVar[str] = "op"
    profiles: ClassVar[Mapping[str, Dtypes]]  # "smoke", "standard", "full" -> dtypes

    def subjects(self) -> dict[str, Subject]:
        """The subjects that it applies to, by name: all of its kind."""
        return subjects(self.kind)

    @property
    def summary(self) -> str:
        """One line for people: the first of the class's docstring."""
        return (type(self).__doc__ or "").strip().splitlines()[0]

    def dtypes(self, subject: Subject, policy: Dtypes) -> list[torch.dtype | None]:
        """Dtypes to check; [None] where the case has no dtype in its name."""
        if policy is Dtypes.NONE:
            return [None]
        backward = policy in (Dtypes.DIFFERENTIABLE, Dtypes.DEFAULT_DIFFERENTIABLE)
        supported = subject.dtypes(backward)
        if policy is Dtypes.FLOAT64:
            return [torch.float64] if torch.float64 in supported else []
        if policy is Dtypes.DEFAULT_AND_COMPLEX:
            complexes = [dtype for dtype in supported[1:] if dtype.is_complex]
            return [*supported[:1], *complexes[:1]]
        if policy in (Dtypes.DEFAULT, Dtypes.DEFAULT_DIFFERENTIABLE):
            supported = supported[:1]
        return list(supported)

    def applies(self, subject: Subject, dtype: torch.dtype | None) -> str:
        """Empty, or the reason why the property does not concern this subject."""
        return ""

    @abstractmethod
    def check(self, run: Run) -> None:
        """Raises, or records with run.attempt(), where the device is wrong."""


class SampleProperty(Property):
    """A property that looks at one sample input after the other."""

    requires_grad: ClassVar[bool] = False
    few: ClassVar[int | None] = None  # so many samples show it all; see Run.few()
    few_if_short: ClassVar[int | None] = None  # the same in a short run

    @abstractmethod
    def examine(self, run: Run, sample: Sample, device: torch.device) -> None:
        """Raises where `device` is wrong; also called with the CPU, see the head of this file."""

    def check(self, run: Run) -> None:
        """Examines each sample."""
        grad = self.requires_grad
        few = (self.few_if_short if run.is_short else None) or self.few
        for sample in run.samples(grad) if few is None else run.few(few, grad):
            run.attempt(sample.index, self._bind(run, sample))
            if len(run.failures) >= FAILURES_MAX:
                return

    def _bind(self, run: Run, sample: Sample) -> Callable[[torch.device], None]:
        return lambda device: self.examine(run, sample, device)


def values_are_defined(operator: Any) -> bool:
    """False for operators that return uninitialised memory."""
    return not getattr(operator, "has_nondeterministic_output", False)


def require(condition: bool, message: str) -> None:
    """Raises Mismatch(message) unless the condition holds."""
    if not condition:
        raise Mismatch(message)
