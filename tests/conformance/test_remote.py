# SPDX-License-Identifier: BSD-3-Clause
"""Cases that run elsewhere, through a command or on executors: the outcomes are those from here."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from concurrent.futures import Executor, Future, ThreadPoolExecutor

import pytest
from conformance.test_ends import descendants, gone, marked
from conformance.test_runner import PLANTED, command, environment, statuses
from processes import python

from npusim_conformance.backend.expectations import Expectations, parse
from npusim_conformance.cli import main
from npusim_conformance.record import log
from npusim_conformance.remote import cluster
from npusim_conformance.remote.order import Order
from npusim_conformance.run.worker import WorkerConfig
from npusim_conformance.verdict import Outcome, Status

HERE = ["--remote", "sh -c", "--remote-python", shlex.quote(sys.executable)]
CHOSEN = ["--device", "cpu", "--ops", "op:add,op:sub", "--props", "forward", "--quiet"]
EXPECTED = {
    "device": {"name": "mychip", "import": "torch_mychip", "native": ["op:add"]},
    "dtypes": {"unsupported": ["float64"], "operators": {"linalg.*": ["float32"]}},
    "tolerance": [{"cases": ["op:a/*"], "reason": "order", "rtol": 1e-4, "atol": 0.0}],
    "xfail": [{"cases": "op:b/*", "reason": "soon", "issue": "https://example.org/1"}],
    "skip": [{"cases": ["op:c/*"], "reason": "hangs"}],
}


@pytest.fixture
def here(tmp_path):
    """Outcomes of the same cases, run by this machine's workers."""
    main(["run", *CHOSEN, "--out", str(tmp_path / "here")])
    return log.read(tmp_path / "here")


def run_kit(out, planted, *arguments):
    done = python(*command(out, *arguments), env=environment(planted, out.parent, ""))
    return done.returncode, done.stdout + done.stderr


# --- orders


def test_an_order_is_one_line_and_comes_back_whole():
    config = WorkerConfig("mychip", "torch_mychip", parse(EXPECTED, "here"), seed=3, samples_max=2)
    order = Order(config, ("op:add/forward/float32",), 2, 5.0, "spawn", 7.0)
    line = order.to_line()
    assert "\n" not in line
    assert Order.from_line(line) == order
    assert parse(Expectations().to_data(), "nothing") == Expectations()


def test_an_order_of_another_version_is_refused_in_words(tmp_path, capsys):
    record = json.loads(Order(WorkerConfig("cpu", "", Expectations()), ()).to_line())
    (tmp_path / "order").write_text(json.dumps({**record, "kit": "9.9"}))
    main(["serve", str(tmp_path / "order")])
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert "the order is of npusim-conformance 9.9" in answers[0]["unusable"]


def test_an_order_in_a_file_is_answered_with_a_log(tmp_path, capsys):
    """For machines that nothing but files reaches."""
    names = ("op:add/forward/float32", "op:sub/forward/float32")
    order = Order(WorkerConfig("cpu", "", Expectations(), samples_max=1), names, 1)
    (tmp_path / "order").write_text(order.to_line())
    assert main(["serve", str(tmp_path / "order")]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "done" not in line]
    (tmp_path / "run.jsonl").write_text("\n".join(lines) + "\n")
    assert main(["report", str(tmp_path), "--format", "text"]) == 0
    assert set(log.read(tmp_path).outcomes) == set(names)


# --- through a command


def test_through_a_command_the_outcomes_are_the_same(here, tmp_path):
    assert main(["run", *CHOSEN, *HERE, "--out", str(tmp_path / "there")]) == 0
    there = log.read(tmp_path / "there")
    assert statuses(there.outcomes) == statuses(here.outcomes)
    assert there.head["torch"] == here.head["torch"]
    assert there.traps == here.traps


def test_crashes_and_hangs_cost_their_own_cases_there_too(tmp_path):
    chosen = ("--timeout", "1", "--jobs", "1", "--dtypes", "int64")
    code, _ = run_kit(tmp_path / "out", PLANTED, *HERE, *chosen)
    assert code == 1
    found = statuses(log.read(tmp_path / "out").outcomes)
    expected = {"add": Status.PASS, "sub": Status.CRASH, "neg": Status.CRASH, "mul": Status.TIMEOUT}
    assert {name.split("/")[0].removeprefix("op:"): one for name, one in found.items()} == expected


@pytest.mark.parametrize(
    ("prefix", "said"),
    [
        ("no-such-command-anywhere", "no-such-command-anywhere"),
        ("sh -c 'echo no route to board >&2; exit 255' --", "no route to board"),
        ("sh -c 'echo Welcome to board; cat' --", "'Welcome to board', which is no line of a log"),
    ],
)
def test_a_command_that_reaches_nobody_is_told(tmp_path, capsys, prefix, said):
    chosen = ["run", *CHOSEN, "--remote", prefix, "--out", str(tmp_path / "out")]
    assert main(chosen) == 3
    assert said in capsys.readouterr().err


def test_a_backend_that_does_not_load_there_is_told(tmp_path, capsys):
    chosen = ["run", *CHOSEN, *HERE, "--import", "no_such_backend", "--out", str(tmp_path / "out")]
    assert main(chosen) == 3
    assert "No module named 'no_such_backend'" in capsys.readouterr().err


def test_a_line_that_breaks_is_made_again_for_what_is_left(here, tmp_path):
    """The first connection for cases ends after two answers, as a board that reboots."""
    script = tmp_path / "flaky"
    count = tmp_path / "count"
    script.write_text(
        f'#!/bin/sh\necho x >> {count}\nif [ "$(wc -l < {count})" = 2 ]; then\n'
        f'  sh -c "$1" | head -n 3\nelse\n  exec sh -c "$1"\nfi\n'
    )
    script.chmod(0o755)
    remote = ["--remote", str(script), "--remote-python", shlex.quote(sys.executable)]
    assert main(["run", *CHOSEN, *remote, "--out", str(tmp_path / "there")]) == 0
    assert statuses(log.read(tmp_path / "there").outcomes) == statuses(here.outcomes)
    assert len(count.read_text().split()) == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_end_here_is_an_end_there(tmp_path, number):
    arguments = command(tmp_path / "out", *HERE, "--ops", "op:mul", "--jobs", "1")
    kit = subprocess.Popen(
        [sys.executable, *arguments],
        env=environment("stay:mul", tmp_path, ""),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        marked(tmp_path / "staying", kit)
        there = descendants(kit.pid)
        assert len(there) >= 3  # sh or serve, its child, a worker
        os.kill(kit.pid, number)
        kit.wait(timeout=60)
    finally:
        kit.kill()
    assert kit.returncode == (130 if number is signal.SIGINT else -number)
    assert gone(there)


# --- on executors


@pytest.fixture
def small_tasks(monkeypatch):
    monkeypatch.setattr(cluster, "CASES_MIN", 1)
    yield
    cluster.close_idle()


@pytest.mark.usefixtures("small_tasks")
def test_any_executor_gives_the_same(here, tmp_path):
    with ThreadPoolExecutor(2) as executor:
        assert main(["run", *CHOSEN, "--out", str(tmp_path / "there")], executor) == 0
    assert statuses(log.read(tmp_path / "there").outcomes) == statuses(here.outcomes)


class Canned(Executor):
    """Answers without running anything: `answers` are records, or errors to raise."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.names = []

    def submit(self, run, line):
        assert run is cluster.run_order
        future = Future()
        order = Order.from_line(line)
        self.names.append(order.names)
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            future.set_exception(answer)
        elif answer != "never":
            passed = [Outcome(name, Status.PASS).to_json() for name in order.names]
            future.set_result([{**HEAD, **(answer or {})}, *passed, {"traps": []}])
        return future


HEAD = dict.fromkeys(("kit", "torch", "torch_git", "backend"), "1")
NAMES = ["op:add/forward/float32", "op:sub/forward/float32"]


def on(executor, budget=None):
    order = Order(WorkerConfig("cpu", "", Expectations()), ())
    runner = cluster.OnExecutor(order, executor, budget)
    runner.machine()
    return {outcome.case: outcome.status for outcome in runner.run(NAMES)}


@pytest.mark.usefixtures("small_tasks")
def test_a_task_whose_worker_is_lost_runs_again():
    executor = Canned(None, OSError("switched off"), None)
    assert on(executor) == dict.fromkeys(NAMES, Status.PASS)
    assert executor.names == [(), (NAMES[0],), (NAMES[1],), (NAMES[0],)]
    with pytest.raises(cluster.DeviceUnusable, match=r"1 cases came to nothing .* switched off"):
        on(Canned(None, *[OSError("switched off")] * 6))


@pytest.mark.usefixtures("small_tasks")
def test_machines_that_differ_are_refused():
    with pytest.raises(cluster.DeviceUnusable, match="torch is '2' on one, '1' on another"):
        on(Canned(None, None, {"torch": "2"}))


@pytest.mark.usefixtures("small_tasks")
def test_what_no_worker_had_time_for_is_not_run():
    class Over:
        reason = "the time budget of 1s was spent"
        text = "1s"
        ends_at = time.monotonic()

    assert on(Canned(None, None, "never"), Over()) == {
        NAMES[0]: Status.PASS,
        NAMES[1]: Status.NOT_RUN,
    }


@pytest.mark.parametrize("address", ["ray://here", "dask://", "here:8786"])
def test_addresses_of_clusters(tmp_path, capsys, address):
    chosen = ["run", *CHOSEN, "--executor", address, "--out", str(tmp_path / "out")]
    assert main(chosen) == 2
    assert "expected dask://host:port" in capsys.readouterr().err


@pytest.mark.usefixtures("small_tasks")
def test_a_cluster_by_its_address(here, tmp_path):
    distributed = pytest.importorskip("distributed", reason="distributed is not installed")
    cluster_here = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    )
    with cluster_here:
        address = cluster_here.scheduler_address.removeprefix("tcp://")
        chosen = [*CHOSEN, "--executor", f"dask://{address}", "--out", str(tmp_path / "there")]
        assert main(["run", *chosen]) == 0
    assert statuses(log.read(tmp_path / "there").outcomes) == statuses(here.outcomes)
