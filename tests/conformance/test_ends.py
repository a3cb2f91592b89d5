# SPDX-License-Identifier: BSD-3-Clause
"""Every way in which a run can end: none hangs, none leaves a process, each has its exit status."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conformance.test_runner import command, environment
from processes import python

from npusim_conformance import processes
from npusim_conformance.backend.expectations import Expectations
from npusim_conformance.record import log
from npusim_conformance.run import runner
from npusim_conformance.run.current_case import Flight
from npusim_conformance.run.worker import WorkerConfig
from npusim_conformance.verdict import Outcome, Status

LIMIT_SECONDS = 200  # of a test; none of them is near it


@pytest.fixture
def start(tmp_path):
    """Starts the kit on a device with planted misbehaviour."""
    started = []

    def start(planted="", *arguments, **variables):
        kit = subprocess.Popen(
            [sys.executable, *command(tmp_path / "out", *arguments)],
            env=environment(planted, tmp_path, "torch_npusim" if "npusim" in arguments else "")
            | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            # A job in the background of a shell ignores it, and hands that down.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        started.append(kit)
        return kit

    yield start
    for kit in started:
        kit.kill()
        kit.communicate()


def ended(kit):
    """(exit status, output) of a kit that ends by itself."""
    text, _ = kit.communicate(timeout=LIMIT_SECONDS)
    return kit.returncode, text


def marked(path, kit):
    """Waits until a planted defect has left its mark."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not path.exists():
        assert kit.poll() is None, kit.communicate()[0]
        assert time.monotonic() < deadline, f"{path.name} did not come"
        time.sleep(0.01)  # until another process has come so far
    return path


def descendants(pid):
    """Processes that descend from one, as far as their parents live."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(folder.name)] = int(fields[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


def is_alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def gone(pids):
    """The kernel takes a moment to end what was killed."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not any(map(is_alive, pids))


def test_a_helper_that_holds_the_pipe_does_not_hide_a_death(start, tmp_path):
    kit = start("helped_crash:sub", "--ops", "op:sub", "--dtypes", "float32", "--timeout", "60")
    code, _ = ended(kit)
    outcome = log.read(tmp_path / "out").outcomes["op:sub/forward/float32"]
    assert (code, outcome.status) == (1, Status.CRASH)
    assert outcome.seconds < 60
    assert gone([int((tmp_path / "helper").read_text())])


def test_an_import_that_hangs_has_a_limit(start):
    code, text = ended(start("", "--load-timeout", "1", PLANTED_IMPORT="hangs"))
    assert code == 3
    assert "the backend did not load within 1 s" in text
    assert "wrong_operators.py" in text  # where it hangs
    assert "Traceback" not in text


def test_a_backend_that_has_loaded_once_has_longer(tmp_path):
    """On a machine that others keep busy, a late worker loses no run."""
    runs = runner.Runner(WorkerConfig("cpu", "", Expectations()), load_seconds=10)
    here, there = os.pipe()
    os.set_blocking(here, False)
    worker = runner.WorkerProcess(0, 0, here, Flight(tmp_path / "flight"), tmp_path / "stderr")
    first = runs.load_limit()
    os.write(there, b'{"ready": true}\n')
    assert list(runs._read(worker)) == []
    assert (first, runs.load_limit()) == (10, 50)


def test_memory_is_limited_by_what_is_resident(start, tmp_path):
    chosen = ("--ops", "op:sub,op:add", "--dtypes", "float32", "--memory", "1.5", "--jobs", "1")
    code, _ = ended(start("devour:sub", *chosen))
    outcomes = log.read(tmp_path / "out").outcomes
    assert code == 1
    assert outcomes["op:sub/forward/float32"].status is Status.MEMORY
    assert "more than 1.5 GiB of memory at sample 0" in outcomes["op:sub/forward/float32"].message
    assert outcomes["op:add/forward/float32"].status is Status.PASS


def test_a_full_disk_is_told_once_and_is_no_verdict(start, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "run.jsonl").symlink_to("/dev/full")
    code, text = ended(start("", "--ops", "op:add"))
    assert code == 4
    assert "cannot write: " in text
    assert "No space left on device" in text
    assert "Traceback" not in text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("phase", ["importing", "hang"])
def test_a_signal_ends_everything(start, tmp_path, number, phase):
    if phase == "importing":
        kit = start("", PLANTED_IMPORT="hangs")
        marked(tmp_path / "importing", kit)
    else:
        kit = start("stay:mul", "--ops", "op:mul", "--jobs", "2")
        marked(tmp_path / "staying", kit)
    workers = descendants(kit.pid)
    assert workers
    os.kill(kit.pid, number)
    text, _ = kit.communicate(timeout=LIMIT_SECONDS)
    expected = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -signal.SIGKILL}
    assert kit.returncode == expected[number], text
    assert "Traceback" not in text
    assert gone(workers)


def test_a_crash_between_cases_is_not_lost(start, tmp_path):
    kit = start("late:sub", "--ops", "op:sub", "--dtypes", "float32")
    code, _ = ended(kit)
    outcome = log.read(tmp_path / "out").outcomes["op:sub/forward/float32"]
    assert (code, outcome.status) == (1, Status.CRASH)


def test_a_crash_names_the_call_in_flight(start, tmp_path):
    chosen = ("--device", "npusim", "--ops", "op:lgamma", "--dtypes", "int64")
    kit = start("kernel:lgamma", *chosen)
    ended(kit)
    crash = log.read(tmp_path / "out").outcomes["op:lgamma/forward/int64"]
    assert crash.status is Status.CRASH
    assert crash.culprit == "aten::lgamma"
    assert crash.cause == "aten::lgamma: crash: SIGSEGV"
    assert "in aten::lgamma(int64" in crash.message
    assert "torch.ops.aten.lgamma.default(" in crash.repro


def test_a_crash_that_hides_from_a_watch_has_a_script_too(start, tmp_path):
    chosen = ("--device", "npusim", "--ops", "op:lgamma", "--dtypes", "int64")
    kit = start("kernel_shy:lgamma", *chosen)
    ended(kit)
    crash = log.read(tmp_path / "out").outcomes["op:lgamma/forward/int64"]
    assert crash.message == "the process died at sample 0: SIGSEGV, in a call of aten::lgamma"
    assert crash.culprit == "aten::lgamma"
    assert crash.cause == "aten::lgamma: crash: SIGSEGV"
    assert "torch.lgamma(" in crash.repro or "aten.lgamma" in crash.repro


def test_repro_prints_the_script_of_a_crash_before_it_runs(tmp_path):
    variables = environment("kernel:lgamma", tmp_path, "torch_npusim")
    kit = ["-m", "npusim_conformance", "repro", "op:lgamma/forward/int64"]
    done = python(
        *kit,
        "--device",
        "npusim",
        "--import",
        "wrong_operators",
        "--max-samples",
        "2",
        env=variables,
        timeout=LIMIT_SECONDS,
    )
    assert done.returncode == -signal.SIGSEGV
    assert "torch.ops.aten.lgamma.default(" in done.stdout
    assert "Fatal Python error: Segmentation fault" in done.stderr


def test_a_session_is_ended_whole():
    script = "import subprocess, sys, time; subprocess.Popen(['sleep', '600']); print(flush=True)"
    leader = subprocess.Popen(
        [sys.executable, "-c", f"{script}; time.sleep(600)"],
        start_new_session=True,
        stdout=subprocess.PIPE,
    )
    leader.stdout.readline()
    children = descendants(leader.pid)
    assert len(children) == 1
    assert os.WTERMSIG(processes.end(leader.pid)) == signal.SIGKILL
    assert gone(children)


def test_a_missing_kernel_is_not_blamed_for_a_death():
    died = Outcome("op:sin/forward/float32", Status.CRASH, "the process died", attempt=2)
    lacking = {"culprit": "aten::_fft_c2r", "repro": "import torch", "attempt": 3}
    watched = Outcome(died.case, Status.UNIMPLEMENTED, "no kernel for aten::_fft_c2r", **lacking)
    told = runner.told_by(died, watched)
    assert (told.status, told.culprit, told.repro) == (Status.CRASH, "", "")
    assert told.cause == "sin: crash"
    assert told.message == "the process died; watched, it ends with no kernel for aten::_fft_c2r"


ORPHAN = """
import os
from npusim_conformance.processes import end_with_parent

alive, say = os.pipe()
gone, tell = os.pipe()
if os.fork() == 0:
    parent = os.getpid()
    if os.fork() == 0:
        os.close(tell)
        os.read(gone, 1)  # the parent is at its end
        while os.getppid() == parent:
            os.sched_yield()
        end_with_parent(parent)
        os.write(say, b"alive")
    os._exit(0)
os.close(tell)
os.close(say)
assert os.read(alive, 5) == b""
"""


def test_a_process_whose_parent_ended_before_it_could_ask_ends():
    done = subprocess.run([sys.executable, "-c", ORPHAN], timeout=LIMIT_SECONDS)
    assert done.returncode == 0
