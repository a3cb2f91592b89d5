# SPDX-License-Identifier: BSD-3-Clause
"""How a process that used the device ends: with status 0, and without a word on stderr."""

from npusim_conformance.contracts import LEFT_OUT, contract
from npusim_conformance.contracts.apart.script import ends_well, run_script, said
from npusim_conformance.processes import end_of
from npusim_conformance.properties.base import Run, require

_LIVE = """
kept = [torch.arange(1000).to(device) + 1]
ring = [kept]; ring.append(ring)
"""
_PINNED = """
pinned = torch.arange(1000).pin_memory()
kept = pinned.to(device, non_blocking=True)
"""
_STREAMS = """
stream, event = torch.Stream(device), torch.Event(device)
generator = torch.Generator(device)
with stream:
    kept = torch.ones(1 << 18).to(device) + 1
    event.record()
"""
_BACKWARD = """
model = torch.nn.Linear(64, 64).to(device)
model(torch.ones(8, 64).to(device)).sum().backward()
"""
_THREAD = """
import threading
def work():
    local = threading.local()
    local.kept = torch.ones(1000).to(device) * 2
    waiting.set()
    forever.wait()
waiting, forever = threading.Event(), threading.Event()
threading.Thread(target=work, daemon=True).start()
waiting.wait()
"""
_EXCEPTION = """
kept = torch.ones(3).to(device)
raise SystemExit(7)
"""


@contract(quick=False)
def ends_with_live_tensors(run: Run) -> None:
    """A process ends well with live tensors and reference cycles."""
    ends_well(run_script(run.under_test, _LIVE, fresh=True))


@contract(quick=False, no_cpu="it pins nothing")
def ends_with_live_pinned_memory(run: Run) -> None:
    """A process ends well with a live pinned tensor and a copy from it."""
    done = run_script(run.under_test, _PINNED, fresh=True)
    if LEFT_OUT.search(done.stderr):
        raise RuntimeError(said(done.stderr))
    ends_well(done)


@contract(quick=False, no_cpu="the CPU has no streams")
def ends_with_live_streams(run: Run) -> None:
    """A process ends well with live streams, events, generators, and work nobody waited for."""
    done = run_script(run.under_test, _STREAMS, fresh=True)
    if LEFT_OUT.search(done.stderr):
        raise RuntimeError(said(done.stderr))
    ends_well(done)


@contract(quick=False)
def ends_after_backward(run: Run) -> None:
    """A process whose last line is backward() ends well, four times in a row."""
    for _ in range(4):  # where the engine's threads outlive the interpreter, one in two dies
        ends_well(run_script(run.under_test, _BACKWARD, fresh=True))


@contract(quick=False)
def ends_with_a_thread(run: Run) -> None:
    """A process ends well while a daemon thread holds a tensor."""
    ends_well(run_script(run.under_test, _THREAD, fresh=True))


@contract(quick=False)
def import_says_nothing(run: Run) -> None:
    """A process that only imports the backend ends well and is silent."""
    done = run_script(run.under_test, "", fresh=True)
    ends_well(done)
    require(not done.stdout, f"it wrote {done.stdout[:100]!r}")


@contract(quick=False)
def keeps_the_exit_status(run: Run) -> None:
    """sys.exit(n) with live tensors ends with n."""
    done = run_script(run.under_test, _EXCEPTION, fresh=True)
    require(done.returncode == 7, f"it ended {end_of(done.returncode)}, expected status 7")
