# SPDX-License-Identifier: BSD-3-Clause
"""The command npusim-lab, and recording from a live run."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from processes import python

import npusim_lab
from npusim_lab.command import main
from npusim_lab.files import load
from npusim_lab.matching import agreement
from npusim_lab.recording import record_script, replay_recorded
from npusim_lab.trace import Op

TRAINING = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256)
).to("npusim")
optimizer = torch.optim.AdamW(model.parameters())
side = torch.npusim.Stream()
for step in range(5):
    x = torch.randn(8 * (1 + step % 3), 64, 256, device="npusim")
    side.wait_stream(torch.npusim.current_stream())
    with torch.npusim.stream(side):
        y = x * 2
        x.record_stream(side)
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 2:
        del x, y, loss
        torch.npusim.empty_cache()
"""
RUNNING_OUT = """
import torch
kept = []
while True:
    scratch = torch.empty(30 << 20, dtype=torch.uint8, device="npusim")
    kept.append(torch.empty(12 << 20, dtype=torch.uint8, device="npusim"))
    del scratch
    kept.append(torch.empty(12 << 20, dtype=torch.uint8, device="npusim"))
"""


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([arguments[0], "--json", *arguments[1:]]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    "rules",
    [
        "npusim",
        "cuda-2.13",
        "cuda-2.13,max_split_size_mb:32,roundup_power2_divisions:4",
    ],
)
def test_a_replay_of_a_live_run_places_every_block_as_the_device_did(
    rules: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPUSIM_ALLOCATOR", rules)
    (tmp_path / "train.py").write_text(TRAINING)
    trace = record_script(tmp_path / "train.py")
    assert trace.info["exit_status"] == 0
    assert {Op.EMPTY_CACHE, Op.SEGMENT_FREE} <= set(trace.op.tolist())
    same = agreement(trace, replay_recorded(trace, validate=True))
    assert same.compared == (trace.op == Op.MALLOC).sum() > 100
    assert same.equal == same.compared, same
    other = npusim_lab.replay(trace, "bfc")
    assert agreement(trace, other).equal < same.compared, "the comparison can fail"
    texts = {trace.stack_text(number, 50) for number in set(trace.stack.tolist())}
    assert any("train.py" in text for text in texts)
    assert not any("runpy" in text for text in texts)


def test_a_run_that_ends_out_of_memory_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NPUSIM_DEVICE_MEMORY", "200MiB")
    (tmp_path / "run.py").write_text(RUNNING_OUT)
    out = str(tmp_path / "a.npt")
    recorded = run(capsys, "record", "--out", out, str(tmp_path / "run.py"))
    assert recorded["equal"] == recorded["compared"] > 0
    answer = run(capsys, "explain", out)
    assert answer["oom"]["requested_bytes"] <= 30 << 20
    assert "run.py" in answer["stack"]


def test_commands_answer_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, pickled = str(tmp_path / "a.npt"), str(tmp_path / "a.pickle")
    listed = run(capsys, "generate")
    assert "kv-cache" in listed
    assert listed["llama-train"].startswith("Recorded: ")
    taken = run(capsys, "generate", "llama-train", "--out", trace)
    assert taken["info"]["source"] == "npusim run"
    made = run(capsys, "generate", "kv-cache", "--steps", "3", "--out", trace)
    assert run(capsys, "plan", trace)["at_least"] == made["max_live_bytes"]
    assert run(capsys, "replay", trace)["ooms"] == 0
    compared = run(capsys, "compare", trace, "--policy", "cuda-2.13,buddy,bfc")
    assert [row["policy"] for row in compared[0]["policies"]] == ["cuda-2.13", "buddy", "bfc"]
    assert main(["compare", trace, "--policy", "buddy,bfc", "--metric", "ooms"]) == 0
    table = ["| trace | buddy | bfc |", "|---|---|---|", f"| {trace} | 0 | 0 |"]
    assert capsys.readouterr().out.splitlines() == table
    run(capsys, "generate", "prefetch", "--steps", "3", "--out", str(tmp_path / "s.npt"))
    for more in ([], ["--metric", "ooms"]):
        assert main(["compare", str(tmp_path / "s.npt"), "--policy", "npusim,bfc", *more]) == 0
        assert "Ignoring streams: bfc." in capsys.readouterr().out
    assert main(["replay", str(tmp_path / "s.npt"), "--policy", "bfc"]) == 0
    assert "Ignoring streams: bfc." in capsys.readouterr().out
    assert len(run(capsys, "search", trace, "--grid", "max_split_size_mb=,20,64")) == 3
    run(capsys, "export", trace, pickled, "--format", "snapshot")
    again = run(capsys, "import", pickled, str(tmp_path / "b.npt"))
    assert again["mallocs"] == made["mallocs"]
    assert again["max_live_bytes"] == made["max_live_bytes"]
    for format in ("rmm", "buffers"):
        other = str(tmp_path / f"a.{format}")
        run(capsys, "export", trace, other, "--format", format)
        assert load(other).compiled.mallocs == made["mallocs"]
    assert run(capsys, "explain", trace, "--capacity", "16GiB")["oom"] is None


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["replay", "{trace}", "--policy", "npusim,buddy"], "names 2 policies; expected one"),
        (["replay", "{trace}", "--policy", "nonsense"], "nonsense"),
        (["replay", "{trace}.gone"], "No such file"),
        (["explain", "{trace}", "--frames", "("], "is no regular expression"),
        (["generate", "nonsense"], "expected one of transformer"),
        (["import", "{text}", "x.npt"], "in no format that the lab recognises"),
        (["search", "{trace}", "--grid", "abc"], "expected KEY=V1,V2"),
    ],
)
def test_mistakes_end_with_a_sentence(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, text = tmp_path / "a.npt", tmp_path / "a.txt"
    main(["generate", "zero3", "--steps", "1", "--out", str(trace)])
    text.write_text("hello\n")
    assert main([word.format(trace=trace, text=text) for word in arguments]) == 2
    assert sentence in capsys.readouterr().err


def saved_by_torch() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("model/data.pkl", pickle.dumps({}))
    return out.getvalue()


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"version https://git-lfs.github.com/spec/v1\nsize 4494887\n", "`git lfs pull` brings"),
        (gzip.compress(pickle.dumps({})), "is compressed by gzip"),
        (saved_by_torch(), "is of torch.save()"),
        (b"\xef\xbb\xbf<!DOCTYPE html>", "is a page"),
        (b'{"traceEvents": []}', "is JSON"),
    ],
)
def test_what_is_taken_for_a_snapshot_is_named(
    data: bytes, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(data)
    assert main(["match", str(path)]) == 2
    assert f"{path}: {sentence}" in capsys.readouterr().err.replace("is a pointer of Git LFS; ", "")


POLICIES = """
class Same:
    "Gives everybody the same address."
    def attach(self, device): self.address = device.acquire(1 << 40)
    def malloc(self, bytes, stream): return self.answer(bytes)
    def answer(self, bytes): return self.address
    def free(self, address, bytes, stream): pass
class Negative(Same):
    def answer(self, bytes): return -5
class Word(Same):
    def answer(self, bytes): return "here"
class Float(Same):
    def answer(self, bytes): return 4096.0
class Raises(Same):
    def answer(self, bytes): return {}[bytes]
class Leaves(Same):
    def answer(self, bytes): raise SystemExit(0)
class LeavesAtOnce(Same):
    def __init__(self): raise SystemExit(0)
class Interrupts(Same):
    def answer(self, bytes): raise KeyboardInterrupt
class Refuses(Same):
    def answer(self, bytes): return None
class Ends(Same):
    def answer(self, bytes): import os; os._exit(0)
class Hoards(Same):
    def answer(self, bytes): self.all = bytearray(64 << 30)
class Loops(Same):
    def answer(self, bytes):
        while True: pass
class Sleeps(Same):
    def answer(self, bytes): import time; time.sleep(1e6)
class Deaf(Same):
    "Ignores what tells it to end, and catches what is raised."
    def answer(self, bytes):
        import signal
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            try: signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError): pass
        while True:
            try:
                while True: pass
            except BaseException: pass
class HoardsSlowly(Same):
    def attach(self, device): self.all = []; self.step = device.acquire
    def answer(self, bytes): self.all.append(b"x" * (256 << 20)); return self.step(bytes)
class Searches(Same):
    "Finds the trace among all objects."
    def attach(self, device):
        import gc
        for one in gc.get_objects():
            if type(one).__name__ == "Trace": self.address = device.acquire(512 * len(one.op))
class Reads(Same):
    "Finds the trace in the file that the process was started with."
    def attach(self, device):
        import pathlib, sys
        self.address = device.acquire(len(pathlib.Path(sys.argv[1], "trace.npt").read_bytes()))
class Peeks(Same):
    "Finds the trace in the frames that called it."
    def attach(self, device):
        import sys
        frame = sys._getframe()
        while frame:
            for value in frame.f_locals.values():
                if type(value).__name__ == "Trace" and hasattr(value, "op"):
                    self.address = device.acquire(512 * len(value.op))
            frame = frame.f_back
class NoMalloc:
    def attach(self, device): pass
class NotMade(Same):
    def __init__(self): raise RuntimeError("no licence")
"""


def test_violations_are_the_first_thing_said_and_never_ranked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.py").write_text(POLICIES)
    trace, bad = str(tmp_path / "a.npt"), f"{tmp_path / 'bad.py'}:Same"
    npusim_lab.save(npusim_lab.generate("zero3", steps=1), trace)
    overlap = "which is in use by malloc 0"
    commands = {
        "replay": ["--policy", bad],
        "compare": ["--policy", f"buddy,{bad},npusim"],
        "report": ["--policy", f"buddy,{bad}", "--out", str(tmp_path / "a.html")],
        "search": ["--policy", bad, "--grid", "x=,"],
        "explain": ["--policy", bad, "--capacity", "2TiB"],
        "plot": ["--policy", f"{bad},bfc", "--kind", "comparison", "--out", f"{tmp_path}/a.svg"],
    }
    for command, more in commands.items():
        assert main([command, trace, *more]) == 1, command
        lines = capsys.readouterr().out.splitlines()
        first = lines[0] if command != "compare" else lines[1]
        assert first.startswith(f"VIOLATION: {bad}: event 1: malloc 1 of "), command
        assert f"{overlap} (the first of " in first
        assert first.endswith("This policy cannot run on a device; it is not ranked.")
        assert main([command, "--json", trace, *more]) == 1
        text = capsys.readouterr().out
        assert overlap in text
        if command in ("replay", "compare"):
            answer = json.loads(text)
            row = answer if command == "replay" else answer[0]["policies"][1]
            assert row["violations"] > 100
            assert row["peak_reserved"] is None
    page = (tmp_path / "a.html").read_text()
    assert page.index(overlap) < page.index("<table")
    rows = npusim_lab.compare(load(trace), npusim_lab.parse_choices(f"{bad},buddy,npusim"))
    assert [row["over_max_live"] is None for row in rows] == [True, False, False]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Negative", "event 0: malloc returned -5; expected an address or None"),
        ("Word", "event 0: malloc returned 'here'; expected an address or None"),
        ("Float", "event 0: malloc returned 4096.0; expected an address or None"),
        ("Raises", "event 0: malloc raised KeyError:"),
        ("Leaves", "event 0: malloc raised SystemExit: 0"),
        ("LeavesAtOnce", "LeavesAtOnce: SystemExit: 0"),
        ("Interrupts", "event 0: malloc ("),
        ("Ends", "Ends: its process ended with status 0, without an answer"),
        ("Hoards", "raised MemoryError"),
        ("Loops", "does not end within 2 s; it was stopped"),
        ("Sleeps", "does not end within 2 s; it was stopped"),
        ("Deaf", "does not end within 2 s; it was stopped"),
        ("HoardsSlowly", "raised MemoryError"),
        ("Searches", "otherwise where it cannot know the rest"),
        ("Reads", "otherwise where it cannot know the rest"),
        ("Peeks", "otherwise where it cannot know the rest"),
        ("NoMalloc", "has no method malloc; expected attach(device), malloc(bytes, stream)"),
        ("NotMade", "RuntimeError: no licence"),
        ("Missing", "has no class Missing"),
    ],
)
def test_what_a_policy_does_wrong_is_one_line(
    name: str,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if name in ("Loops", "Sleeps", "Deaf"):
        monkeypatch.setattr("npusim_lab.policy_process.LIMIT_SECONDS", 2.0)
    (tmp_path / "bad.py").write_text(POLICIES)
    trace = str(tmp_path / "a.npt")
    npusim_lab.save(npusim_lab.generate("zero3", steps=1), trace)
    policy = f"{tmp_path / 'bad.py'}:{name}"
    assert main(["replay", trace, "--policy", policy]) == 2
    said = capsys.readouterr()
    assert sentence in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""
    assert main(["compare", "--json", trace, "--policy", f"{policy},buddy"]) == 1
    wrong, buddy = json.loads(capsys.readouterr().out)[0]["policies"]
    assert sentence in wrong["first_violation"]
    assert (wrong["peak_reserved"], buddy["violations"]) == (None, 0)


def test_a_policy_that_refuses_what_there_is_room_for_is_not_ranked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.py").write_text(POLICIES)
    trace, policy = str(tmp_path / "a.npt"), f"{tmp_path / 'bad.py'}:Refuses"
    npusim_lab.save(npusim_lab.generate("zero3", steps=1), trace)
    assert main(["compare", "--json", trace, "--policy", f"{policy},buddy"]) == 1
    refusing, buddy = json.loads(capsys.readouterr().out)[0]["policies"]
    assert re.fullmatch(
        r"event 0: malloc 0 of \d+ bytes is refused, on a device with \d{16} bytes free",
        refusing["first_violation"],
    )
    assert (refusing["over_max_live"], buddy["violations"]) == (None, 0)
    # On a device of a size it has run out of memory, and the rest is of a smaller program.
    assert main(["compare", "--json", trace, "--policy", policy, "--capacity", "4TiB"]) == 0
    (refusing,) = json.loads(capsys.readouterr().out)[0]["policies"]
    assert refusing["ooms"] > 100
    assert refusing["over_max_live"] is None


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    trace = str(tmp_path / "a.npt")
    npusim_lab.save(npusim_lab.generate("zero3", steps=1), trace)
    command = f"{sys.executable} -m npusim_lab replay {trace} | true; exit ${{PIPESTATUS[0]}}"
    ended = subprocess.run(["bash", "-c", command], check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_help_needs_neither_numpy_nor_torch() -> None:
    code = (
        "import sys; from npusim_lab.command import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: sys.exit('numpy' in sys.modules or 'torch' in sys.modules)"
    )
    assert python("-c", code, cold=True).returncode == 0


def test_every_public_name_is_there() -> None:
    assert all(hasattr(npusim_lab, name) for name in npusim_lab.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        npusim_lab.nonsense  # noqa: B018
