# SPDX-License-Identifier: BSD-3-Clause
"""Where the time of a program goes on the device, and what would help: `npusim profile`.

record_script() runs a script, unmodified, and diagnose() replays what it did under what would be
different; docs/use/profiling.md explains both. Times of devices and launches are virtual; the waits
for a data loader are wall time of this machine.

Code enters if it runs a program and says where its time goes.
"""

from torch_npusim.profiling._advice import Advice
from torch_npusim.profiling._diagnosis import Diagnosis, Operator, diagnose
from torch_npusim.profiling._recording import LoaderWait, Recording, record, record_script

__all__ = [
    "Advice",
    "Diagnosis",
    "LoaderWait",
    "Operator",
    "Recording",
    "diagnose",
    "record",
    "record_script",
]
