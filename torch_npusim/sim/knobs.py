# SPDX-License-Identifier: BSD-3-Clause
"""How the simulated machine is configured: its knobs, and what its memory is made of."""

from dataclasses import dataclass

from torch_npusim import _C

__all__ = ["Knob", "knobs", "memory_backing"]


@dataclass(frozen=True)
class Knob:
    """One environment variable.

    Attributes:
        name: NPUSIM_...
        default: Text that stands for an unset variable.
        values: Accepted values, in words.
        doc: Its effect.
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


def memory_backing() -> str:
    """Returns the kind of device memory: if the host can read it and why, if addresses vary."""
    return _C.memory_backing()
