# SPDX-License-Identifier: BSD-3-Clause
"""Needs of teams with chips: annotations, a time budget, shards that merge, schemas."""

import json
import re
from collections import Counter
from fnmatch import fnmatch

import fastjsonschema
import pytest
from conformance.test_report import HEAD, NOTHING, schema, summary_of

from npusim_conformance.backend.expectations import Expectations
from npusim_conformance.case import Case
from npusim_conformance.cases import catalog
from npusim_conformance.cases.priority import telling_first
from npusim_conformance.cases.selection import Selection
from npusim_conformance.cli import main
from npusim_conformance.record.log import LogWriter, read
from npusim_conformance.report import github
from npusim_conformance.run.budget import RETRIES_SHARE, Budget
from npusim_conformance.run.runner import Runner
from npusim_conformance.run.worker import WorkerConfig
from npusim_conformance.verdict import ErrorSize, Outcome, Status

COMMAND = re.compile(r"::(error|notice) title=([^:,\n]+)::([^\n]*)")  # as GitHub's runner reads it

# --- annotations


def test_every_cause_is_one_annotation():
    lines = github.annotations(summary_of()).splitlines()
    found = [COMMAND.fullmatch(line) for line in lines]
    assert all(found)
    assert [match[1] for match in found] == ["error"] * len(summary_of().causes) + ["notice"]
    assert "1 x state leaks from case to case" in lines[0]
    assert "2 x aten%3A%3Amul" in lines[1]
    assert found[1][3] == "off by </script> & more%0Aop:cov/forward/float32, op:var/forward/float32"


def test_nothing_executed_is_an_error_too():
    assert "::error title=npusim-conformance::nothing was executed" in github.annotations(NOTHING)


def test_job_summary_is_a_table_that_no_message_breaks():
    broken = [Outcome("op:a/forward/float32", Status.FAIL, "a | b\nc <d>", cause="x", repro="1/0")]
    text = github.job_summary(summary_of(broken), None)
    assert "| 1 |  | a \\| b c &lt;d> | `op:a/forward/float32` |" in text
    assert "```python\n1/0\n```" in text


def test_report_annotates_and_appends_to_the_summary_of_the_job(tmp_path, monkeypatch, capsys):
    path = tmp_path / "summary.md"
    path.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(path))
    with LogWriter(tmp_path / "run.jsonl", HEAD, resume=False) as log:
        log.add(Outcome("op:add/forward/float32", Status.FAIL, "off", cause="x"))
    assert main(["report", str(tmp_path), "--annotations", "github"]) == 1
    assert "::error title=1 x x::off%0A" in capsys.readouterr().err
    assert path.read_text().startswith("before\n## npusim-conformance on `mychip`: failed")


# --- a time budget


@pytest.mark.parametrize(
    ("text", "seconds"), [("20m", 1200), ("90s", 90), ("1h30m", 5400), ("45", 45), ("0.5m", 30)]
)
def test_budgets_are_read(text, seconds):
    assert Budget.parse(text).seconds == seconds


@pytest.mark.parametrize("text", ["", "m", "20 m", "-1s", "soon", "5d"])
def test_what_is_no_time_is_refused(text, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["run", "--device", "cpu", f"--time-budget={text}"])
    assert ended.value.code == 2
    assert "expected a time, as in 20m, 90s or 1h30m" in capsys.readouterr().err


@pytest.fixture(scope="module")
def standard():
    return [str(case) for case in catalog.cases(Selection("standard"))]


def test_wherever_it_is_cut_every_subject_had_its_turn(standard):
    order = telling_first(standard)
    assert sorted(order) == sorted(standard)
    subjects = Counter((Case.parse(name).kind, Case.parse(name).subject) for name in standard)
    taken = Counter()
    for name in order:
        case = Case.parse(name)
        subject = (case.kind, case.subject)
        taken[subject] += 1
        if taken[subject] == 2:  # the second round: nobody waits for the first any more
            assert len(taken) == len(subjects)
    assert taken == subjects


def test_the_first_case_of_an_operator_is_its_values(standard):
    order = telling_first(standard)
    first = {}
    for name in order:
        case = Case.parse(name)
        if case.kind == "op":
            first.setdefault(case.subject, case)
    asked = {Case.parse(name).subject for name in standard if fnmatch(name, "op:*/forward/*")}
    assert {name for name, case in first.items() if case.property == "forward"} == asked
    assert first["add"].dtype == "float32"


class OverAfterOne:
    """A budget that is spent once a first outcome was seen."""

    reason = "the time budget of 1s was spent"
    first_ends_at = ends_at = float("inf")


def test_what_there_was_no_time_for_is_not_run():
    names = [
        f"op:{name}/forward/{dtype}" for dtype in ("float32", "int64") for name in ("add", "sub")
    ]
    budget = OverAfterOne()
    runner = Runner(WorkerConfig("cpu", "", Expectations(), samples_max=1), budget=budget)
    outcomes = {}
    for outcome in runner.run(names):
        outcomes[outcome.case] = outcome
        budget.first_ends_at = budget.ends_at = 0.0
    assert list(outcomes) == names
    statuses = [outcome.status for outcome in outcomes.values()]
    assert statuses[0] is Status.UPSTREAM or statuses[0] is Status.PASS
    assert statuses[1:] == [Status.NOT_RUN] * 3
    assert outcomes[names[-1]].message == "the time budget of 1s was spent"


def test_a_share_of_the_time_is_for_trying_again():
    budget = Budget.of("100s", 100.0)
    assert budget.ends_at - budget.first_ends_at == pytest.approx(100 * RETRIES_SHARE)


def test_a_run_without_time_says_so_and_goes_on_later(tmp_path, capsys):
    chosen = ["--device", "cpu", "--ops", "op:add", "--props", "forward", "--quiet"]
    chosen += ["--out", str(tmp_path), "--dtypes", "float32,int64", "--isolation", "none"]
    assert main(["run", *chosen, "--time-budget", "0s"]) == 5
    said = capsys.readouterr().out
    assert "2 of 2 cases were not run: the time budget of 0s was spent" in said
    assert main(["run", *chosen, "--resume"]) == 0
    assert {outcome.status for outcome in read(tmp_path).outcomes.values()} == {Status.PASS}


# --- shards


@pytest.fixture
def shard(tmp_path):
    def write(number, count, *outcomes, **head):
        selection = {**Selection("smoke", "op:a*").to_json(), "shard": [number, count]}
        place = tmp_path / f"shard-{number}-of-{count}{len(head)}"
        with LogWriter(place / "run.jsonl", {**HEAD, "selection": selection, **head}, False) as log:
            for outcome in outcomes:
                log.add(outcome)
            log.add_traps((f"trap {number}",))
        return str(place)

    return write


ONE = Outcome("op:add/forward/float32", Status.PASS)
TWO = Outcome("op:acos/forward/float32", Status.FAIL, "off", cause="x")


def test_shards_are_one_run(shard, tmp_path, capsys):
    out = tmp_path / "all"
    assert main(["merge", shard(2, 2, TWO), shard(1, 2, ONE), "--out", str(out)]) == 1
    assert "mychip: 2 executed: 1 pass, 1 fail" in capsys.readouterr().out
    whole = read(out)
    assert whole.head["selection"]["shard"] == [1, 1]
    assert set(whole.outcomes) == {ONE.case, TWO.case}
    assert set(whole.traps) == {"trap 1", "trap 2"}
    assert (out / "report.html").exists()
    assert main(["merge", shard(1, 1, ONE), "--out", str(out)]) == 0


def test_a_missing_shard_is_no_pass(shard, tmp_path, capsys):
    out = str(tmp_path / "all")
    given = ["merge", shard(1, 3, ONE), shard(3, 3), "--out", out]
    assert main(given) == 2
    assert "shards are missing: 2/3" in capsys.readouterr().err
    assert not (tmp_path / "all").exists()
    assert main([*given, "--partial"]) == 0
    assert re.search(r"cases were not run: shard 2/3 is missing", capsys.readouterr().out)
    absent = catalog.cases(Selection("smoke", "op:a*", shard=(2, 3)))
    outcomes = read(tmp_path / "all").outcomes
    assert {name for name, one in outcomes.items() if one.status is Status.NOT_RUN} == {
        str(case) for case in absent
    }


@pytest.mark.parametrize(
    ("head", "said"),
    [({"seed": 1}, "seed is 0 in the first, 1 in the other"), ({"device": "cuda"}, "device is")],
)
def test_what_is_no_shard_of_the_same_run_is_refused(shard, tmp_path, capsys, head, said):
    assert main(["merge", shard(1, 2), shard(2, 2, **head), "--out", str(tmp_path / "all")]) == 2
    assert said in capsys.readouterr().err


def test_a_shard_twice_is_refused(shard, tmp_path, capsys):
    assert main(["merge", shard(1, 2), shard(1, 2, kit="0.2"), "--out", str(tmp_path / "all")]) == 2
    assert "are both shard 1" in capsys.readouterr().err


# --- for programs


def test_every_line_of_a_log_keeps_to_its_schema(tmp_path):
    whole = schema()
    line = {"$ref": "#/definitions/log_line", "definitions": whole["definitions"]}
    validate = fastjsonschema.compile(line)
    with LogWriter(tmp_path / "run.jsonl", HEAD, resume=False) as log:
        log.add(Outcome("op:a/forward", Status.FAIL, error=ErrorSize(float("inf"), 1.0, None)))
        log.add_traps(("a trap",))
    lines = (tmp_path / "run.jsonl").read_text().splitlines()
    for text in lines:
        validate(json.loads(text, parse_constant=pytest.fail))  # no Infinity, no NaN
    assert len(lines) == 3
    assert read(tmp_path).outcomes["op:a/forward"].error == ErrorSize(float("inf"), 1.0)
    with pytest.raises(fastjsonschema.JsonSchemaValueException):
        validate({"case": "op:a/forward", "status": "fine"})
