# SPDX-License-Identifier: BSD-3-Clause
"""Plans of buffers from a file or a trace: what is read, judged and written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from allocator.instances import FAMILIES, HEIGHT

from npusim_lab import Buffers, Op, Placement, TraceBuilder, TraceError, generate, plan
from npusim_lab.command import main
from npusim_lab.corpus import GENERATORS
from npusim_lab.planning import conflict, write_placement
from npusim_lab.study import Choice, bounds, replay
from npusim_lab.text_formats import read_buffers

FIVE = "id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\nb3,0,9,4\nb4,9,21,4\nb5,0,21,4\n"


@pytest.fixture
def five(tmp_path: Path) -> str:
    path = tmp_path / "five.csv"
    path.write_text(FIVE)
    return str(path)


def answer(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> dict:
    assert main(["plan", *words, "--json"]) == status
    return json.loads(capsys.readouterr().out)


def test_a_file_is_placed_and_written(five, tmp_path, capsys) -> None:
    out = tmp_path / "out.csv"
    found = answer(capsys, five, "--capacity", "12", "--out", str(out))
    assert found["planned"] == found["at_least"] == 12
    assert (found["verdict"], found["is_optimal"]) == ("fits", True)
    lines = out.read_text().splitlines()
    assert lines[0] == "id,lower,upper,size,offset"
    assert [line.split(",")[0] for line in lines[1:]] == ["b1", "b2", "b3", "b4", "b5"]
    assert {line.split(",")[-1] for line in lines[1:]} == {"0", "4", "8"}
    assert len(read_buffers(out)) == 5, "what is written can be read again"


def test_a_capacity_is_proven_too_small_or_not_decided(five, tmp_path, capsys) -> None:
    found = answer(capsys, five, "--capacity", "11", status=1)
    assert (found["verdict"], found["planned"], found["at_least"]) == ("impossible", 12, 12)
    assert main(["plan", five, "--capacity", "11"]) == 1
    assert "proven: no plan fits" in capsys.readouterr().out
    hard = Buffers(list(map(str, range(300))), *FAMILIES["windmills"](300, 1))
    unknown = plan(hard, HEIGHT, steps=1000)
    assert (unknown.verdict, unknown.at_least) == ("unknown", HEIGHT)
    assert plan(hard, HEIGHT - 1, steps=1000).verdict == "impossible"


def test_a_time_budget_is_kept_and_must_be_one(five, capsys) -> None:
    hard = Buffers(list(map(str, range(1000))), *FAMILIES["trimmed"](1000, 1))
    limited = plan(hard, seconds=0.2)
    assert limited.verdict == "fits"
    assert 0 < limited.steps < 10**9, "some 5 ns each: a search without the limit never ends"
    assert main(["plan", five, "--time-budget", "0"]) == 2
    assert "expected more than 0" in capsys.readouterr().err


def test_gaps_and_alignments_of_a_file(tmp_path, capsys) -> None:
    path, out = tmp_path / "gaps.csv", tmp_path / "out.csv"
    path.write_text(
        "id,lower,upper,size,alignment,gaps,offset\n"
        "a,0,9,4,1,2-4 6-7,77\nb,2,4,4,,,0\nc,4,5,2,4,,0\n"
    )
    buffers = read_buffers(path)
    assert buffers.gaps == ((0, 2, 4), (0, 6, 7))
    assert answer(capsys, str(path), "--out", str(out))["planned"] == 6
    assert out.read_text().splitlines()[1].startswith("a,0,9,4,1,2-4 6-7,")
    assert read_buffers(out).gaps == buffers.gaps
    aligned = plan(buffers, alignment=4)
    assert (aligned.offsets % 4 == 0).all()
    assert aligned.height == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,lower,size\n", "line 1: columns 'id,lower,size'; expected id,lower,upper,size"),
        ("id,lower,upper,size,window\n", "line 1"),
        ("id,lower,upper,size,size\n", "line 1"),
        (FIVE + "b6,0,1\n", "line 7: too few columns; expected 4"),
        (FIVE + "b5,0,1,4\n", "line 7: id 'b5' is that of line 6"),
        (FIVE + "b6,1,1,4\n", "line 7: lower 1, upper 1"),
        (FIVE + "b6,0,1,0\n", "a size of at least 1"),
        (FIVE + "b6,0,1,1_000\n", "line 7: '1_000' is not a number"),
        (FIVE + "b6,0,1,٣\n", "line 7: '٣' is not a number"),
        (FIVE + f"b6,0,1,{2**63}\n", "9223372036854775808; expected 0 to less than 2^63"),
        (FIVE + "b6,0,--1,3\n", "line 7: '--1' is not a number"),
        ("id,lower,upper,size,gaps\na,0,9,1,3-4-5\n", "'4-5' is not a number"),
        ("id,lower,upper,size,gaps\na,0,9,1,3\n", "the gap '3'; expected LOWER-UPPER"),
        ("id,lower,upper,size,gaps\na,0,9,1,4-5 1-2\n", "the gap 1-2; expected gaps in order"),
        ("id,lower,upper,size,gaps\na,0,9,1,4-5@0:1\n", "parts are not supported"),
        ("id,lower,upper,size,alignment\na,0,9,1,0\n", "alignment 0; expected 1 to 2^31"),
    ],
)
def test_a_line_that_cannot_be_is_named(text: str, message: str, tmp_path, capsys) -> None:
    path = tmp_path / "wrong.csv"
    path.write_text(text)
    with pytest.raises(TraceError) as problem:
        read_buffers(path)
    assert message in str(problem.value)
    assert main(["plan", str(path)]) == 2
    message = message if "upper" in text else "in no format that the lab recognises"
    assert message in capsys.readouterr().err


def test_the_judge_finds_what_is_wrong_with_a_plan(five) -> None:
    buffers = read_buffers(five)
    found = plan(buffers)
    assert conflict(buffers, found.offsets, found.height) == ""
    assert "ends above 11" in conflict(buffers, found.offsets, found.height - 1)
    assert conflict(buffers, found.offsets[:4], 12) == "4 offsets of 5 buffers"
    for moved in range(4):
        offsets = found.offsets.copy()
        offsets[moved] = offsets[4]
        assert "share addresses" in conflict(buffers, offsets, 12), moved
    odd = replace(buffers, alignments=np.array([1, 1, 1, 1, 8], np.uint64))
    assert conflict(odd, np.array([0, 0, 8, 0, 4], np.uint64), 12) == "buffer b5 is not aligned"
    last = np.array([2**64 - 1, 0, 8, 0, 4], np.uint64)
    assert "b1 ends above 12" in conflict(buffers, last, 12), "no sum wraps"
    gaps = Buffers(
        ["a", "b"],
        np.array([0, 2]),
        np.array([9, 4]),
        np.array([4, 4], np.uint64),
        None,
        ((0, 2, 4),),
    )
    assert conflict(gaps, np.zeros(2, np.uint64), 4) == ""
    assert "share" in conflict(replace(gaps, gaps=((0, 3, 4),)), np.zeros(2, np.uint64), 4)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_judge_agrees_about_large_plans(family: str) -> None:
    buffers = Buffers(list(map(str, range(3000))), *FAMILIES[family](3000, 3))
    found = plan(buffers, steps=10**6)
    assert conflict(buffers, found.offsets, found.height) == ""


@pytest.mark.parametrize("name", GENERATORS)
def test_no_policy_that_does_not_stitch_needs_less(name: str) -> None:
    trace = generate(name, steps=4)
    limits = bounds(trace)
    assert limits["max_live"] <= limits["at_least"] <= limits["planned"]
    for policy in ("npusim", "cuda-2.13", "bfc", "buddy", "banked", "planned"):
        reserved = replay(trace, Choice(policy), placements=False).peak_reserved
        assert reserved >= limits["planned"], policy


def test_requests_that_every_policy_refuses_are_left_out(tmp_path, capsys) -> None:
    out = TraceBuilder()
    out.malloc(100)
    for _ in range(20):
        out.malloc(2**60 - 1)
    out.malloc(2**63 - 1)
    with pytest.raises(TraceError, match=r"event 4: more than 2\^62 bytes are in use"):
        out.build().compiled  # noqa: B018
    few = TraceBuilder()
    for size in (100, 2**63 - 1, 2**60 - 1, 50):
        few.malloc(size)
    assert few.build().op.tolist() == [Op.MALLOC] * 4
    limits = bounds(few.build())
    assert limits["max_live"] == limits["planned"] == 2**60 + 149


def test_writing_needs_one_offset_each(tmp_path, five) -> None:
    buffers = read_buffers(five)
    short = Placement(np.zeros(3, np.uint64), 12, 12, None, 0)
    with pytest.raises(ValueError, match="shorter"):
        write_placement(buffers, short, tmp_path / "out.csv")


def test_a_file_without_buffers_needs_no_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "none.csv"
    path.write_text("id,lower,upper,size\n")
    assert main(["plan", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["planned"] == 0
    for words in (["explain", str(path)], ["replay", str(path), "--policy", "planned"]):
        assert main(words) == 0
