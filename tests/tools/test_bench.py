# SPDX-License-Identifier: BSD-3-Clause
"""The benchmark measures what it says: every statement runs and gives the CPU's result."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from bench import children, machine, operators, plan, report, sharing, training
from bench.measure import Effort, Quotient, quotient, take_turns, timer
from processes import python
from repo.sources import ROOT
from torch.utils._pytree import tree_leaves

SMALL_TABLES = operators.ELEMENTWISE | operators.REDUCTIONS | operators.ROUTE_III


@pytest.fixture
def named():
    return {device: operators.operands((16, 64), device) for device in ("npusim", "cpu")}


def assert_same(ours, theirs):
    for our, their in zip(tree_leaves(ours), tree_leaves(theirs), strict=True):
        assert our.is_npusim
        torch.testing.assert_close(our.cpu(), their, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("row", SMALL_TABLES)
def test_statements_give_the_cpus_bits(row, named):
    ours, theirs = (eval(SMALL_TABLES[row], named[device]) for device in ("npusim", "cpu"))
    assert_same(ours, theirs)


@pytest.mark.parametrize("row", operators.OUT_OF_PLACE)
def test_large_statements_and_their_twins_agree(row, monkeypatch):
    monkeypatch.setattr(operators, "LARGE", (4, 8))
    ours, theirs = operators.large_operands("npusim"), operators.large_operands("cpu")
    statement, with_out = operators.OUT_OF_PLACE[row]
    assert_same(eval(statement, ours), eval(statement, theirs))
    eval(with_out, theirs)
    assert torch.equal(theirs["o"], eval(statement, theirs))


def test_tables_have_the_promised_number_of_rows(named):
    assert len(operators.ELEMENTWISE) == 40
    assert len(operators.REDUCTIONS) == 20
    assert len(plan.route_iii_table(named["npusim"])) == operators.ROUTE_III_ROWS


def test_wrapped_scalars_are_among_the_elementwise_operators():
    assert sum("scalar" in row for row in operators.ELEMENTWISE) >= 8


@pytest.mark.parametrize("model", training.MODELS)
def test_training_steps_are_the_same_on_both_devices(model):
    losses = {}
    for device in ("npusim", "cpu"):
        step = training.training_step(model, device)
        losses[device] = [step().item() for _ in range(2)]
    assert losses["npusim"] == pytest.approx(losses["cpu"], rel=1e-4)
    assert losses["npusim"][1] < losses["npusim"][0]


def test_parts_of_a_step_run_again_and_again():
    for device in ("npusim", "cpu"):
        for part in training.parts_of_a_step(training.SMALL, device).values():
            part()
            part()


def test_both_kinds_of_memory_are_shared():
    with sharing.sender() as sender:
        for device in ("npusim", "cpu"):
            assert sender.new(device)[0].item() == 2  # the receiver's write
            kept = torch.ones(4, device=device)
            assert [sender.again(kept)[-1].item() for _ in range(2)] == [1, 1]


def test_quotient_is_the_median_of_neighbouring_blocks():
    found = quotient([1.0, 2.0, 9.0], [2.0, 2.0, 3.0])
    assert (found.value, found.ours_ns, found.theirs_ns) == (1.0, 1e9, 2e9)


class Stopwatch:
    """Stands in for a Timer: every run takes `run_s`."""

    def __init__(self, name, run_s, seen):
        self.name, self.run_s, self.seen = name, run_s, seen

    def timeit(self, number):
        self.seen.append((self.name, number))
        return SimpleNamespace(mean=self.run_s)


def test_sides_take_turns_and_change_the_order():
    seen = []
    sides = {name: Stopwatch(name, 1.0, seen) for name in "ab"}
    found = take_turns(sides, Effort(3, 1.0))
    assert "".join(name for name, _ in seen) == "ab" + "abbaab"
    assert found == {"a": [1.0] * 3, "b": [1.0] * 3}


@pytest.mark.parametrize(("run_s", "runs"), [(1e-6, 2000), (3e-4, 7), (0.05, 1)])
def test_blocks_are_filled_by_calibration(run_s, runs):
    seen = []
    take_turns({"a": Stopwatch("a", run_s, seen)}, Effort(1, 2e-3))
    assert seen[-1] == ("a", runs)


def test_timers_run_the_statement():
    seen = []
    timer("seen.append(1)", {"seen": seen}, threads=1).timeit(3)
    assert len(seen) >= 3


def test_geomean_and_verdict():
    group = plan.Group("g", "Title", "CPU", plan.Target(geomean=2.0, worst=3.0))
    group.rows = {"low": Quotient(1.0, 1, 1, 1, 1), "high": Quotient(4.0, 4, 4, 4, 1)}
    found = report.summary(group)
    assert found["geomean"] == pytest.approx(2.0)
    assert found["worst"] == {"name": "high", "value": 4.0}
    assert not found["met"]
    group.target = plan.Target(geomean=2.001, worst=4.0)
    assert report.summary(group)["met"]


def test_page_keeps_what_stands_around_the_marks():
    results = report.document([], machine.describe(), "command")
    page = f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n"
    new = report.rewritten(page, results)
    assert new.startswith("before\n")
    assert new.endswith("\nafter\n")
    assert "old" not in new
    with pytest.raises(ValueError, match="needs the lines"):
        report.rewritten("no marks", results)


def test_groups_that_were_measured_again_take_their_old_place():
    before = [{"name": "a", "met": False}, {"name": "b", "met": False}]
    found = report.merged(before, [{"name": "a", "met": True}, {"name": "c", "met": True}])
    assert [(group["name"], group["met"]) for group in found] == [
        ("a", True),
        ("b", False),
        ("c", True),
    ]


def test_documented_page_has_the_marks():
    page = (ROOT / "docs" / "reference" / "performance.md").read_text()
    assert page.count(report.BEGIN) == page.count(report.END) == 1


def test_results_have_their_schema(tmp_path):
    results = tmp_path / "results.json"
    command = ["tools/bench/run.py", "--quick", "--only", "copies", "import"]
    python(*command, "--json", results, check=True, cwd=ROOT)
    found = json.loads(results.read_text())
    assert set(found) == {"schema", "command", "machine", "groups"}
    assert found["schema"] == report.SCHEMA
    assert set(found["machine"]) == set(machine.describe())
    assert [group["name"] for group in found["groups"]] == ["copies", "import"]
    for group in found["groups"]:
        assert set(group) == {
            *("name", "title", "baseline", "threads", "unit", "target", "geomean", "worst", "met"),
            *("load", "rows"),
        }
        assert set(group["target"]) == {"geomean", "worst"}
        for row in group["rows"]:
            assert set(row) == {"name", "value", "low", "high", "ours_ns", "theirs_ns"}
            assert row["low"] <= row["value"] <= row["high"]
            assert 0 < row["ours_ns"]


def test_a_measurement_elsewhere_runs_the_program_that_there_is(monkeypatch):
    def run(command, **_):
        assert command[1] == str(ROOT / "tools/bench/run.py")
        assert children.RUN.is_file()
        results = command[command.index("--json") + 1]
        Path(results).write_text('{"groups": []}')

    monkeypatch.setattr(children.subprocess, "run", run)
    assert children._elsewhere("training", plan.QUICK) == []
