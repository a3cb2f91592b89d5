# SPDX-License-Identifier: BSD-3-Clause
"""Crashes, hangs and kills cost the kit one case each, and the log tells what happened."""

import os
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

import pytest
from processes import python

from npusim_conformance.backend.expectations import Expectations
from npusim_conformance.record import log
from npusim_conformance.run import session
from npusim_conformance.run.runner import Runner
from npusim_conformance.run.worker import WorkerConfig
from npusim_conformance.verdict import Outcome, Status

HERE = Path(__file__).parent
NAMES = ("add", "sub", "mul", "neg")
CASES = {f"op:{name}/forward/{dtype}" for name in NAMES for dtype in ("float32", "int64")}
PLANTED = "crash:sub,leave:neg,hang:mul"


def command(out, *arguments):
    kit = ["-m", "npusim_conformance", "run", "--device", "cpu", "--import"]
    chosen = [
        "--ops",
        ",".join(f"op:{name}" for name in NAMES),
        "--props",
        "forward",
        "--dtypes",
        "float32,int64",
    ]
    return [*kit, "wrong_operators", "--quiet", "--out", str(out), *chosen, *arguments]


def environment(planted, marks, device):
    variables = {name: text for name, text in os.environ.items() if "NPUSIM" not in name}
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH", "")]))
    told = {"PLANTED": planted, "PLANTED_MARKS": str(marks), "PLANTED_DEVICE": device}
    return {**variables, "PYTHONPATH": path, **told}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Runs the kit on a device with planted misbehaviour; (exit status, output, outcomes)."""

    def run(planted, *arguments, out=None):
        out = out or tmp_path_factory.mktemp("run") / "out"
        device = "torch_npusim" if "npusim" in arguments else ""
        done = python(*command(out, *arguments), env=environment(planted, out.parent, device))
        outcomes = log.read(out).outcomes if out.exists() else {}
        return done.returncode, done.stdout + done.stderr, outcomes

    return run


@pytest.fixture(scope="module")
def broken(run):
    """One run with a crash, an exit and a hang, by one worker."""
    return run(PLANTED, "--timeout", "1", "--jobs", "1")


def statuses(outcomes):
    return {name: outcome.status for name, outcome in outcomes.items()}


def test_every_misbehaviour_costs_its_own_cases_only(broken):
    code, _, outcomes = broken
    assert code == 1
    expected = {"add": Status.PASS, "sub": Status.CRASH, "neg": Status.CRASH, "mul": Status.TIMEOUT}
    assert statuses(outcomes) == {
        case: expected[case.removeprefix("op:").partition("/")[0]] for case in CASES
    }


def test_a_crash_is_told_with_sample_signal_and_place(broken):
    crash = broken[2]["op:sub/forward/int64"]
    assert crash.message.startswith("the process died at sample 0: SIGSEGV, in aten::sub.Tensor(")
    assert crash.failed_samples == [0]
    assert "in crash" in crash.detail


def test_a_process_that_leaves_is_a_crash_too(broken):
    assert "exit status 7" in broken[2]["op:neg/forward/float32"].message


def test_a_hang_is_told_with_limit_and_place(broken):
    hang = broken[2]["op:mul/forward/float32"]
    assert hang.message.startswith("no answer after 1 s at sample 0, in aten::mul.Tensor(")
    assert "in hang" in hang.detail


def test_a_crash_costs_less_than_half_a_second(broken):
    """Of the case itself: what starting another worker costs is a benchmark's business."""
    assert broken[2]["op:sub/forward/int64"].seconds < 0.5


def test_outcomes_do_not_depend_on_the_number_of_workers(run, broken):
    _, _, outcomes = run(PLANTED, "--timeout", "1", "--jobs", "2")
    assert statuses(outcomes) == statuses(broken[2])


def test_spawned_workers_find_the_same(run, broken):
    chosen = ["--ops", "op:add,op:sub", "--dtypes", "int64"]
    _, _, outcomes = run(PLANTED, "--isolation", "spawn", *chosen)
    assert statuses(outcomes) == {
        name: broken[2][name].status for name in ("op:add/forward/int64", "op:sub/forward/int64")
    }


def test_a_warm_up_is_not_timed(run):
    chosen = ["--ops", "op:add,op:mul", "--dtypes", "int64", "--timeout", "1", "--warm-up", "60"]
    _, _, outcomes = run("compiled:add", *chosen)
    outcome = outcomes["op:add/forward/int64"]
    assert outcome.status is Status.PASS
    assert outcome.seconds < 1


def test_a_hang_in_a_warm_up_has_a_limit(run):
    chosen = ["--ops", "op:mul", "--dtypes", "int64", "--timeout", "1", "--warm-up", "1"]
    _, _, outcomes = run("hang:mul", *chosen)
    outcome = outcomes["op:mul/forward/int64"]
    assert outcome.message.startswith("no answer after 1 s and its warm-up at sample 0")


def test_the_runner_says_what_it_does_while_nothing_comes(tmp_path, monkeypatch):
    monkeypatch.setenv("PLANTED", "crash:sub")
    monkeypatch.setenv("PLANTED_MARKS", str(tmp_path))
    monkeypatch.syspath_prepend(HERE)
    runner, told = Runner(WorkerConfig("cpu", "wrong_operators", Expectations(), samples_max=1)), []
    runner.on_tick = told.append
    list(runner.run(["op:sub/forward/float32"]))
    assert list(dict.fromkeys(told)) == ["cases", "crashes under watch: 1"]


def test_the_line_of_a_bar_that_stands_is_drawn(tmp_path, monkeypatch, capsys):
    runner = Runner(WorkerConfig("cpu", "", Expectations()))
    names = ["op:sub/forward/float32"]

    def run(names, before=()):
        yield Outcome(names[0], Status.FAIL, "wrong")
        runner.on_tick("failures again: 1")

    monkeypatch.setattr(runner, "run", run)
    monkeypatch.setattr(session.time, "monotonic", count(0, 100).__next__)
    with log.LogWriter(tmp_path / "run.jsonl", {}, False) as writer:
        session.recorded(runner, names, writer, Expectations())
    said = capsys.readouterr().err
    assert "failures again: 1: 100%" in said
    assert "1 fail" in said


def test_what_passes_in_a_fresh_process_is_a_flake(run):
    code, _, outcomes = run("wrong_once:add,wrong:sub", "--device", "npusim")
    assert code == 1
    flakes = [name for name, status in statuses(outcomes).items() if status is Status.FLAKE]
    assert len(flakes) == 1
    assert flakes[0].startswith("op:add/")
    assert outcomes[flakes[0]].message.startswith("passes alone, and failed: result: ")
    wrong = outcomes["op:sub/forward/int64"]
    assert (wrong.status, wrong.attempt) == (Status.FAIL, 2)


def test_what_depends_on_the_case_before_it_is_no_flake(run):
    chosen = ["--ops", "op:add", "--props", "forward", "--dtypes", "float32,int64"]
    _, _, outcomes = run("wrong_later:add", "--device", "npusim", "--max-samples", "2", *chosen)
    first, later = "op:add/forward/float32", "op:add/forward/int64"
    assert statuses(outcomes) == {first: Status.PASS, later: Status.FAIL}
    said = f"fails after {first}, and passes alone: result: "
    assert outcomes[later].message.startswith(said)


def test_crashes_of_one_trap_are_its_cause(run):
    planted = "copies_a_view:add,copies_a_view:mul,crash:sub"
    chosen = ["--ops", "op:add,op:mul,op:sub", "--dtypes", "float32"]
    _, said, outcomes = run(planted, "--device", "npusim", *chosen)
    assert set(statuses(outcomes).values()) == {Status.CRASH}
    causes = {name.split("/")[0]: outcome.cause for name, outcome in outcomes.items()}
    assert causes["op:add"] == causes["op:mul"] == "aten::_copy_from: crash"
    assert causes["op:sub"] != causes["op:add"]
    assert "2 x aten::_copy_from: the process died" in said


def test_a_worker_that_grows_is_replaced():
    limited = WorkerConfig("cpu", "", Expectations(), samples_max=2, memory_limit_bytes=1)
    names = sorted(case for case in CASES if "float32" in case)
    found = list(Runner(limited).run(names))
    assert [outcome.case for outcome in found] == names
    assert {outcome.status for outcome in found} == {Status.PASS}


def test_killed_and_resumed_equals_uninterrupted(run, tmp_path):
    many = ["--ops", "op:a*,op:m*", "--jobs", "1"]
    _, _, whole = run("crash:amax", *many)
    out = tmp_path / "killed"
    kit = subprocess.Popen(
        [sys.executable, *command(out, *many)],
        env=environment("crash:amax", tmp_path, ""),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    written = out / "run.jsonl"
    while not (written.exists() and written.read_bytes().count(b"\n") > 20):
        assert time.monotonic() < deadline
        assert kit.poll() is None, "it ended before it could be killed"
    kit.send_signal(signal.SIGKILL)
    kit.wait()
    assert 0 < len(log.read(out).outcomes) < len(whole)
    with written.open("a") as half_written:
        half_written.write('{"case": "op:am')
    code, _, resumed = run("crash:amax", *many, "--resume", out=out)
    assert code == 1

    def facts(outcomes):
        return {
            name: (found.status, found.message, found.samples, found.attempt)
            for name, found in outcomes.items()
        }

    assert facts(resumed) == facts(whole)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--device", "no_such_device"], 3, "torch knows no device 'no_such_device'"),
        (["--import", "no_such_module"], 3, "importing 'no_such_module' failed"),
        (["--ops", "no_such_*"], 5, "no case fits"),
        (["--expect", "no_such_file.toml"], 2, "no_such_file.toml"),
    ],
)
def test_what_cannot_run_says_why(run, arguments, code, said):
    found, text, outcomes = run("", *arguments)
    assert (found, outcomes) == (code, {})
    assert said in text


def test_resume_refuses_another_selection(run, tmp_path):
    run("", "--ops", "add", out=tmp_path / "out")
    code, text, _ = run("", "--ops", "sub", "--resume", out=tmp_path / "out")
    assert code == 2
    assert "was written with selection = " in text
