# SPDX-License-Identifier: BSD-3-Clause
"""Commands as a user expects: globs that exclude, runs that differ in what they ask, late cases."""

import json
import tomllib

import pytest

from npusim_conformance.cli import main, status
from npusim_conformance.run import runner
from npusim_conformance.verdict import Outcome, Status

ADD, SUB, SIN = (f"op:{name}/forward/float32" for name in ("add", "sub", "sin"))


def listed(capsys, *arguments):
    assert main(["list", "--profile", "smoke", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_leading_tilde_excludes_by_kind(capsys):
    everything = listed(capsys)
    without = listed(capsys, "--ops", "~contract:*")
    assert set(everything) - set(without) == {one for one in everything if "contract:" in one}
    assert {one.partition(":")[0] for one in without} >= {"op", "module"}


def test_what_has_no_dtype_is_neither_chosen_nor_left_out_by_one(capsys):
    found = listed(capsys, "--ops", "op:add,contract:device", "--dtypes", "float32")
    assert "op:add/forward/float32" in found
    assert "contract:device/set_device_changes_current" in found
    assert not [one for one in found if one.endswith("/bfloat16")]


def test_runs_of_different_selections_are_compared_where_both_asked(write, capsys):
    before = write("before", Outcome(ADD, Status.PASS))
    after = [Outcome(ADD, Status.PASS), Outcome(SUB, Status.FAIL, "off", cause="x")]
    wider = write("after", *after, profile="standard")
    assert main(["compare", before, wider]) == 0  # the first run never asked for it
    said = capsys.readouterr().out
    assert "the runs had different selections; compared are the 1 common cases" in said
    assert main(["compare", before, write("same", *after)]) == 1


@pytest.fixture
def again(monkeypatch):
    """Says what comes of cases that run once more, and which were asked."""
    asked = []

    def of(status):
        def run(self, names, before=()):
            asked.extend(names)
            return [Outcome(name, status, cause="x") for name in names]

        monkeypatch.setattr(runner.Runner, "run", run)
        return asked

    return of


@pytest.mark.parametrize(
    ("status", "expected"), [(Status.PASS, []), (Status.FAIL, [SUB]), (Status.TIMEOUT, [SUB])]
)
def test_what_timed_out_runs_again_before_it_is_expected_to_fail(
    write, tmp_path, again, status, expected
):
    log = write("run", Outcome(ADD, Status.PASS), Outcome(SUB, Status.TIMEOUT, cause="timeout"))
    file, asked = tmp_path / "mychip.toml", again(status)
    assert main(["expect", "--update", log, "--expect", str(file)]) == 0
    entries = tomllib.loads(file.read_text())["xfail"] if file.exists() else []
    assert [case for entry in entries for case in entry["cases"]] == expected
    assert asked == [SUB]


def test_a_user_may_trust_the_timeouts_of_a_log(write, tmp_path, again):
    log = write("run", Outcome(SUB, Status.TIMEOUT, cause="timeout"))
    file, asked = tmp_path / "mychip.toml", again(Status.PASS)
    assert main(["expect", "--update", log, "--expect", str(file), "--trust-timeouts"]) == 0
    assert tomllib.loads(file.read_text())["xfail"][0]["cases"] == [SUB]
    assert asked == []


def test_each_end_has_its_exit_status(write, tmp_path, monkeypatch, capsys):
    chosen = ["--ops", "op:add", "--props", "forward", "--dtypes", "int64", "--isolation", "none"]
    run = ["run", *chosen, "--quiet", "--out", str(tmp_path / "out"), "--device"]
    full = ["run", *chosen, "--quiet", "--out", "/dev/full/run", "--device", "cpu"]
    assert main([*run, "cpu"]) == status.EXIT_OK == 0
    failed = write("failed", Outcome(ADD, Status.FAIL, cause="x"))
    assert main(["report", failed]) == status.EXIT_FAILURES == 1
    assert main(["report", str(tmp_path / "nowhere")]) == status.EXIT_USAGE == 2
    assert main([*run, "nosuchchip"]) == status.EXIT_UNUSABLE == 3
    assert main(full) == status.EXIT_UNWRITABLE == 4
    assert main([*run, "cpu", "--dtypes", "no*"]) == status.EXIT_NOTHING_EXECUTED == 5

    capsys.readouterr()
    assert main([word for word in run if word != "--quiet"] + ["cpu"]) == 0
    assert "1/1" in capsys.readouterr().err

    def interrupted(self, names, before=()):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner.Runner, "run", interrupted)
    assert main([*run, "cpu"]) == status.EXIT_INTERRUPTED == 130
    assert "interrupted; --resume continues from here" in capsys.readouterr().err
