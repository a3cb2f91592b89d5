# SPDX-License-Identifier: BSD-3-Clause
"""Forked children: they may be refused the device, but may not hang, crash or read garbage."""

import signal

import torch

from npusim_conformance.contracts import contract
from npusim_conformance.contracts.apart.script import ends_well, run_script
from npusim_conformance.processes import name_of
from npusim_conformance.properties.base import Run, require
from npusim_conformance.verdict import Mismatch

_NO_CPU = "the CPU can be used in any process"
# A child that does `body` and the parent's report on how it ended; the child has 20 seconds.
_FORK = """
import os, signal, time
{before}
read, write = os.pipe()
child = os.fork()
if child == 0:
    try:
        signal.alarm(20)
{body}
        said = "done"
    except BaseException as error:
        said = "refused " + str(error).replace(chr(10), " ")
    os.write(write, said.encode())
    os._exit(0)
os.close(write)
said = os.fdopen(read).read()
_, status = os.waitpid(child, 0)
print("signal", os.WTERMSIG(status)) if os.WIFSIGNALED(status) else print(said)
{after}
"""
_USED_HERE = "x = torch.arange(8.).to(device); torch.ones(2).to(device).add_(1).cpu()"
_STILL_RIGHT = "assert (x + 1).cpu().tolist() == [1., 2., 3., 4., 5., 6., 7., 8.]"


def _child(run: Run, body: str, before: str = _USED_HERE, after: str = _STILL_RIGHT) -> str:
    """The end of a forked child: "done", "refused <message>", or "signal <number>"."""
    indented = "\n".join(f"        {line}" for line in body.splitlines())
    script = _FORK.format(before=before, body=indented, after=after)
    done = run_script(run.under_test, script)
    ends_well(done)
    said = done.stdout.strip()
    if said.startswith("signal"):
        number = int(said.removeprefix("signal "))
        hung = number == signal.SIGALRM
        raise Mismatch(f"the child {'hung' if hung else f'died by {name_of(number)}'}")
    return said


def _is_clear(said: str) -> None:
    words = ("fork", "subprocess", "multiprocessing", "process")
    clear = said == "done" or any(word in said.lower() for word in words)
    require(clear, f"the child was {said!r}, which does not say that forking is the reason")


@contract(no_cpu=_NO_CPU)
def child_is_refused_or_works(run: Run) -> None:
    """A child of a process that used the device computes right there, or is told why it cannot."""
    said = _child(run, "y = torch.ones(3).to(device) + 1\nassert y.cpu().tolist() == [2., 2., 2.]")
    _is_clear(said)


@contract(no_cpu=_NO_CPU)
def child_may_not_read_the_parents_tensors_wrongly(run: Run) -> None:
    """A parent's tensor reads right in a forked child, or is refused; writes stay in the child."""
    said = _child(
        run, "assert x.cpu().tolist() == [0., 1., 2., 3., 4., 5., 6., 7.]\nx.fill_(9)\nx.cpu()"
    )
    _is_clear(said)


@contract(no_cpu=_NO_CPU)
def child_may_use_the_cpu(run: Run) -> None:
    """A forked child can seed and compute on the CPU, as the workers of a DataLoader do."""
    said = _child(
        run,
        "import warnings\n"
        "warnings.simplefilter('ignore')  # of the backend's module, other contracts speak\n"
        "torch.manual_seed(3)\n"
        "assert (torch.rand(9) < 1).all()\n"
        "assert torch.ones(3).add(1).tolist() == [2., 2., 2.]",
    )
    require(said == "done", f"the child was {said!r}")


@contract(no_cpu=_NO_CPU, needs=("_is_in_bad_fork", "manual_seed_all"))
def child_may_seed(run: Run) -> None:
    """torch's seeding functions and a fork_rng() of the CPU work in a forked child."""
    said = _child(
        run,
        "torch.manual_seed(3)\n"
        "with torch.random.fork_rng(devices=[]):\n"
        "    torch.seed()\n"
        "first = torch.rand(3)\n"
        "torch.manual_seed(3)\n"
        "assert torch.rand(3).equal(first), 'equal seeds gave other numbers'",
    )
    require(said == "done", f"the child was {said!r}")


@contract(no_cpu=_NO_CPU)
def child_may_count_devices(run: Run) -> None:
    """A forked child is told how many devices are available, or why it is not."""
    name = run.under_test.device.type
    said = _child(
        run,
        f"count = torch.{name}.device_count()\n"
        "assert count == torch.accelerator.device_count() > 0\n"
        f"found = torch.{name}.is_available()\n"
        "assert found, f'{count} devices, and is_available() is {found}'",
    )
    _is_clear(said)


@contract(no_cpu=_NO_CPU)
def fork_before_first_use(run: Run) -> None:
    """A child forked before the device was used can use it, or is told why it cannot."""
    said = _child(
        run,
        "y = torch.ones(3).to(device) + 1\nassert y.cpu().tolist() == [2., 2., 2.]",
        before="",
        after="assert (torch.ones(2).to(device) + 1).cpu().tolist() == [2., 2.]",
    )
    _is_clear(said)


@contract(no_cpu=_NO_CPU, needs=("_is_in_bad_fork",))
def parent_is_in_no_bad_fork(run: Run) -> None:
    """_is_in_bad_fork() is False where the device can be used."""
    torch.ones(1).to(run.device)
    require(run.under_test.module._is_in_bad_fork() is False, "it is not False")
