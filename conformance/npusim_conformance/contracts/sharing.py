# SPDX-License-Identifier: BSD-3-Clause
"""Tensors of the device for other processes: they arrive, or are refused with a reason."""

import pickle

import torch
from torch.multiprocessing.reductions import init_reductions

from npusim_conformance.contracts import contract, on, refuses, same
from npusim_conformance.contracts.apart.script import run_script
from npusim_conformance.properties.base import Run, require

_NO_CPU = "the CPU's memory can be shared"
_SEND = """
import torch.multiprocessing as multiprocessing

def child(queue):
    value = queue.get()
    queue.task_done()

queue = multiprocessing.get_context("spawn").SimpleQueue()
try:
    queue.put(torch.ones(3).to(device))
except Exception as error:
    print("refused:", type(error).__name__, error)
else:
    print("sent")
"""


def _sent(tensor: torch.Tensor) -> bytes:
    from multiprocessing.reduction import ForkingPickler

    init_reductions()  # type: ignore[no-untyped-call]
    return bytes(ForkingPickler.dumps(tensor))


@contract(no_cpu=_NO_CPU)
def sending_works_or_is_refused(run: Run) -> None:
    """Preparing a tensor for another process works, or raises and says why."""
    tensor = on(run.device, 1, 2)
    try:
        data = _sent(tensor)
    except Exception:
        refuses(
            "sending it",
            lambda: _sent(tensor),
            (RuntimeError, NotImplementedError),
            ("process", "share", "device", "ipc"),
        )
        return
    received = pickle.loads(data)
    same("device of what arrives", received.device, run.device)
    same("values of what arrives", received, tensor)


@contract(quick=False, no_cpu=_NO_CPU)
def queues_do_not_hang(run: Run) -> None:
    """A tensor put into a queue of torch.multiprocessing is sent or refused at once."""
    done = run_script(run.under_test, _SEND)
    said = done.stdout.strip()
    require(
        said == "sent" or said.startswith("refused:"),
        f"the process ended with {done.returncode} and said {said!r}, {done.stderr[-200:]!r}",
    )


@contract(no_cpu="they are on the CPU")
def copies_on_the_cpu_can_be_shared(run: Run) -> None:
    """A tensor that was copied to the CPU can be sent."""
    here = on(run.device, 1, 2).cpu()
    same("values", pickle.loads(_sent(here)), torch.tensor([1.0, 2.0]))
