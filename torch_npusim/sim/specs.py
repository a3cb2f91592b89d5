# SPDX-License-Identifier: BSD-3-Clause
"""How the simulated machine is configured: its knobs, and what its memory is made of."""

from dataclasses import dataclass

from torch_npusim import _C, _specs

__all__ = ["Knob", "cuda_capability", "knobs", "memory_backing"]


@dataclass(frozen=True)
class Knob:
    """One environment variable.

    Attributes:
        name: NPUSIM_...
        default: Text that stands for an unset variable.
        values: What is accepted, in words.
        doc: What it does.
        stability: "stable", "experimental" or "internal".
        value: Text in effect in this process.
        origin: "environment" or "default".
    """

    name: str
    default: str
    values: str
    doc: str
    stability: str
    value: str
    origin: str


def knobs() -> list[Knob]:
    """Returns the table of environment variables with their values in this process."""
    return [Knob(**row) for row in _C.knobs()]


def cuda_capability() -> tuple[int, int] | None:
    """Returns the compute capability of the GPU that NPUSIM_SPEC names; None if it names none."""
    is_gpu = _specs.chosen is not None and _specs.chosen.capability >= (7, 0)
    return _specs.chosen.capability if _specs.chosen is not None and is_gpu else None


def memory_backing() -> str:
    """Returns what device memory is made of, and why if it is not isolated from host code."""
    return _C.memory_backing()
