# SPDX-License-Identifier: BSD-3-Clause
"""The calls that an operator of the database makes below the surface, recorded on the CPU."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from npusim_conformance.backend.device import CPU
from npusim_conformance.inputs.samples import Sample
from npusim_conformance.inputs.transfer import Transfer
from npusim_conformance.properties.base import Run
from npusim_conformance.properties.gradients import gradients

# Recorded samples; further ones reach few further overloads.
SAMPLES = 4
# Return memory that nobody has written to, all or (_ctc_loss) in part.
UNDEFINED = ("empty", "new_empty", "resize", "_resize", "set_", "_ctc_loss")

Overload = Any  # torch._ops.OpOverload


@dataclass(frozen=True)
class Recorded:
    """A call below the surface, with its arguments as they were."""

    overload: Overload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps the first call of every overload of aten."""

    def __init__(self, with_arguments: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: dict[str, Recorded] = {}
        self.with_arguments = with_arguments

    def __torch_dispatch__(
        self, func: Overload, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = str(func)
        if name not in self.calls and func.namespace == "aten":
            kept = Transfer(CPU)((args, kwargs)) if self.with_arguments else ((), {})
            self.calls[name] = Recorded(func, *kept)
        return func(*args, **kwargs)


def first_samples(run: Run) -> list[Sample]:
    """The samples that are recorded."""
    return run.samples(_with_gradient(run))[:SAMPLES]


def recorded_calls(run: Run) -> list[Recorded]:
    """The first call of each overload that the operator reaches, forward and backward."""
    below = Recorder()
    for sample in first_samples(run):
        call = sample.copy(CPU)
        with suppress(Exception), below:  # what fails here is for other properties to say
            if _with_gradient(run):
                gradients(sample, call, run.seed)
            else:
                given, args, kwargs = call
                run.subject.info(given, *args, **kwargs)
    return list(below.calls.values())


def _with_gradient(run: Run) -> bool:
    return bool(run.subject.info.supports_autograd) and run.dtype in run.subject.dtypes(True)


def has_values(overload: Overload) -> bool:
    """Whether the overload's results are defined by its arguments."""
    name = overload._schema.name.removeprefix("aten::")
    is_random = torch.Tag.nondeterministic_seeded in overload.tags
    return not (is_random or name.startswith(UNDEFINED))
