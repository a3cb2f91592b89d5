# SPDX-License-Identifier: BSD-3-Clause
"""A c10d backend for the device: two processes, and what each collective leaves in them.

One run of the program below answers all contracts of this file. On the CPU the backend is gloo.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

import torch

from npusim_conformance.contracts import contract
from npusim_conformance.properties.base import Run, require
from npusim_conformance.verdict import Mismatch, NotApplicable

RANKS = 2
SECONDS = 50.0  # for both; a case has more
_PROGRAM = Path(__file__).parent / "apart" / "ranks.py"


@cache
def _found(name: str, import_name: str) -> dict[str, str]:
    """Two ranks' verdict on each check: nothing, "left out: why", or the fault."""
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    with tempfile.TemporaryDirectory(prefix="npusim-conformance-") as folder:
        ranks = [
            subprocess.Popen(
                [sys.executable, str(_PROGRAM), name, import_name, folder, str(rank)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
                start_new_session=True,
            )
            for rank in range(RANKS)
        ]
        deadline = time.monotonic() + SECONDS
        try:
            said = [
                rank.communicate(timeout=max(0.1, deadline - time.monotonic())) for rank in ranks
            ]
        except subprocess.TimeoutExpired:
            raise Mismatch(f"two ranks did not end within {SECONDS:g} s") from None
        finally:
            for rank in ranks:
                try:
                    os.killpg(rank.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                rank.wait()
    found: dict[str, str] = {}
    for number, (rank, (stdout, stderr)) in enumerate(zip(ranks, said, strict=True)):
        if rank.returncode != 0:
            last = (stderr.strip().splitlines() or [""])[-1]
            raise Mismatch(f"rank {number} ended with status {rank.returncode}: {last}")
        for check, wrong in json.loads(stdout.splitlines()[-1]).items():
            found[check] = found.get(check) or (wrong and f"rank {number}: {wrong}")
    return found


def _holds(run: Run, group: str) -> None:
    """Raises what is wrong with the checks of a group; n/a where all of them are left out."""
    if not torch.distributed.is_available():
        raise NotApplicable("this torch has no torch.distributed")
    import torch.distributed as dist

    kind = run.device.type
    if dist.Backend.default_device_backend_map.get(kind) is None:
        raise NotApplicable(f"no c10d backend is registered for {kind}")
    found = _found(run.under_test.name, run.under_test.import_name)
    mine = {name: wrong for name, wrong in found.items() if name.startswith(f"{group}/")}
    left_out = [wrong for wrong in mine.values() if "left out: " in wrong]
    wrong = [f"{name.partition('/')[2]}: {text}" for name, text in mine.items() if text]
    wrong = [text for text in wrong if "left out: " not in text]
    require(not wrong, "; ".join(wrong[:5]))
    if len(left_out) == len(mine):
        raise NotApplicable(left_out[0] if left_out else "nothing was asked")


@contract(quick=False)
def collectives_have_the_right_values(run: Run) -> None:
    """Reductions, broadcasts, gathers, scatters, exchanges and messages between two ranks."""
    _holds(run, "values")


@contract(quick=False)
def collectives_take_the_usual_dtypes(run: Run) -> None:
    """all_reduce() and all_gather() of each usual dtype are exact for small integers."""
    _holds(run, "dtypes")


@contract(quick=False)
def collectives_may_be_waited_for(run: Run) -> None:
    """async_op=True: work queued before it counts, wait() makes its result visible."""
    _holds(run, "async")


@contract(quick=False)
def collectives_refuse_mistakes(run: Run) -> None:
    """A tensor of another device, a result of a wrong size and a rank that is not there raise."""
    _holds(run, "errors")
