# SPDX-License-Identifier: BSD-3-Clause
"""The recorder, run on npusim, and what is made of its archives."""

import ast
import builtins
import contextlib
import copy
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from processes import python, without_npusim
from repo.sources import ROOT

from npusim_truth import claims, comparison, least_squares, page, recordings
from npusim_truth.recorder import batches, command, privacy, workers
from npusim_truth.recorder import journal as journals
from npusim_truth.recordings import Key, TruthError, is_held_out, load, spec_of
from torch_npusim.cli import main
from torch_npusim.sim import rules, specs

RECORDER = sorted((ROOT / "truth/npusim_truth/recorder").glob("*.py"))
ENVIRONMENT = claims.environment("h100-sxm", None, "2.13")
# A few questions of each section; those of torch's table of operators are of `make truth`.
QUICK = "device|asserts|places-0|layers|others|trained|asked|together"
KEYS = [
    "asserts|aten::gather", "places|emptied|default", "layers|softmax|float32", "gap|x + y",
    "host|x.add_(1)", "kernels|relu|float32", "offset|mlp|eager", "time|mlp|eager",
    "says|torch.ones(2, device='cuda').device", "says|torch.cuda.set_device(99)",
    "order|event never recorded: e.query()", "reach|0|1", "peer|1048576", "load|clocks.sm",
]  # fmt: skip


@pytest.fixture(scope="module")
def journal(tmp_path_factory):
    """The journal of a recording that was killed once it had something to lose."""
    work = tmp_path_factory.mktemp("truth") / "work"
    work.mkdir()
    (work / "only").write_text(json.dumps(KEYS))
    running = subprocess.Popen(recorder(work), env=ENVIRONMENT, start_new_session=True)
    journal = work / "journal"
    while running.poll() is None and not (journal.exists() and b"asserts" in journal.read_bytes()):
        time.sleep(0.005)  # until there is something to lose
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    with journal.open("a") as file:
        file.write('["answers.asked", "says|tor')  # a line that was cut off
    return journal


def recorder(work):
    words = ["--work", str(work), "--out", str(work.parent / "npusim.zip"), "--jobs", "2"]
    words += ["--batches", QUICK]
    return [sys.executable, *claims.LAUNCH, *words]


@pytest.fixture(scope="module")
def archive(journal):
    """The recording, continued."""
    assert subprocess.run(recorder(journal.parent), env=ENVIRONMENT, check=False).returncode == 0
    return journal.parent.parent / "npusim.zip"


@pytest.fixture(scope="module")
def recorded(archive):
    return load(archive)


# --- npusim against itself


def test_all_questions_are_answered_although_the_recorder_was_killed(recorded, journal):
    asked = {key.key for key in recorded.keys() if key.section != "identity"}
    assert asked == {key for key in KEYS if not key.startswith(("host", "load"))}, (
        "a simulated device has no clocks to read, and its host is no claim"
    )
    assert set(recorded.answers) == set(batches.SECTIONS)
    assert not journal.parent.exists(), "the journal is removed once the archive is there"


def recorders(work):
    """The processes that record in a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is of another user
            words = (process / "cmdline").read_text().split("\0")
            if str(work) in words:
                found.append(int(process.name))
    return found


def test_a_recorder_ends_with_the_process_that_asks(tmp_path):
    words = ["--work", str(tmp_path), "--out", str(tmp_path / "out.zip"), "--batches", QUICK]
    program = f"import os; from npusim_truth import claims; claims.run({words}, dict(os.environ))"
    asks = subprocess.Popen([sys.executable, "-c", program], env=ENVIRONMENT)
    while asks.poll() is None and not (tmp_path / "journal").exists():
        time.sleep(0.005)  # until workers run
    assert recorders(tmp_path)
    asks.kill()
    asks.wait()
    for _ in range(1000):
        if not (left := recorders(tmp_path)):
            return
        time.sleep(0.02)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    pytest.fail("the recorder goes on")


def test_a_process_whose_forks_cannot_use_the_device_answers_nothing(tmp_path, monkeypatch, capfd):
    # Seen on an H100: numba, which torch's tests import, had asked for GPUs before the fork.
    def refused():
        raise RuntimeError("CUDA driver initialization failed, you might not have a CUDA gpu.")

    monkeypatch.setattr(workers, "device", refused)
    assert workers.work("answers.asked", str(tmp_path), time.time() + 60) == 1
    assert (
        "forks cannot use the device: CUDA driver initialization failed" in capfd.readouterr().err
    )
    assert not (tmp_path / "journal").exists()


def test_a_fork_that_dies_is_no_fork_that_can_use_the_device(monkeypatch):
    monkeypatch.setattr(workers, "device", lambda: os.kill(os.getpid(), signal.SIGKILL))
    assert workers._broken_fork() == "a fork that uses the device ends without an answer"


def test_workers_side_by_side_share_the_questions(tmp_path, monkeypatch):
    keys = [str(number) for number in range(7)]
    of = batches.Batch("answers", lambda: [(key, lambda: 1) for key in keys])
    monkeypatch.setitem(batches.BATCHES, "answers.few", of)
    monkeypatch.setattr(workers, "_broken_fork", str)
    monkeypatch.setattr(batches, "OPTIONS", batches.Options(jobs=3))
    asked = []

    def fork(name, todo, journal, deadline):
        asked.append([key for key, _ in todo])
        return len(todo), ""

    monkeypatch.setattr(workers, "_fork_runner", fork)
    for turn in range(3):
        workers.work("answers.few", str(tmp_path), time.time() + 60, turn)
    assert asked == [["0", "3", "6"], ["1", "4"], ["2", "5"]]


def test_the_archive_follows_its_schema(archive):
    made = json.loads(zipfile.ZipFile(archive).read("recording.json"))
    assert made.keys() == {"schema", "version", "options", "left_out", "sections"}
    assert (made["schema"], made["version"], made["left_out"]) == ("npusim-truth", 1, 0)
    for section in made["sections"].values():
        assert section.keys() == {"answers", "seconds"}
    assert archive.stat().st_size < batches.LARGEST_ARCHIVE


def test_a_kernel_counts_once_and_its_launch_not_at_all(recorded):
    assert recorded.get(Key("rates", "kernels|relu|float32")) == 1


def test_a_second_recording_has_no_disagreement(recorded, tmp_path):
    # A few questions of the cheap sections: what compare() does with the whole is `make truth`.
    few = {name: recorded.answers[name] for name in ("identity", "answers", "collectives")}
    asked = replace(recorded, answers=few)
    ours = claims.ask(asked, "h100-sxm")
    verdicts = comparison.compare(asked, ours)
    assert [v for v in verdicts if not v.agrees] == []
    assert {v.kind for v in verdicts} == {"identity", "answers", "orders", "reach", "collectives"}


PLANTS = {
    "identity": ("multi_processor_count", lambda value: value + 1, "identity"),
    "acceptance": ("asserts|aten::gather", lambda value: {**value, "said": ["ok"] * 4}, "asserts"),
    "rates": ("gap|x + y", lambda value: {k: v * 2 for k, v in value.items()}, "rates"),
    "steps": ("offset|mlp|eager", lambda value: value + 4, "offsets"),
    "answers": ("says|torch.ones(2, device='cuda').device", lambda value: "cuda:1", "answers"),
    "collectives": ("reach|0|1", lambda value: not value, "reach"),
}


def moved_placement(value):
    """The last allocation lies 512 bytes further."""
    value = copy.deepcopy(value)
    last = max(i for i, entry in enumerate(value["entries"]) if entry[0] == 0)
    value["entries"][last][1] += 512
    return value


PLANTS["allocation"] = ("places|emptied|default", moved_placement, "placements")


@pytest.mark.parametrize("section", batches.SECTIONS)
def test_a_planted_disagreement_is_found(recorded, section):
    key, plant, kind = PLANTS[section]
    answers = {name: dict(of) for name, of in recorded.answers.items()}
    answers[section][key] = plant(answers[section][key])
    wrong = [
        v for v in comparison.compare(replace(recorded, answers=answers), recorded) if not v.agrees
    ]
    assert [(v.of, v.kind) for v in wrong] == [(Key(section, key), kind)]
    assert wrong[0].row
    assert wrong[0].program


def test_a_refusal_names_the_row_of_the_rule_book():
    key = "accepts|mm|int64"
    calls = {"calls|mm": ["aten::mm"]}
    refused = {"call": "mm(int64[2,2], int64[2,2])", "said": ["NotImplementedError: no"]}
    other = {**refused, "said": ["ok int64"]}

    def made(answer):
        return recordings.Recording("x", {"acceptance": {key: answer, **calls}}, {})

    (wrong,) = [v for v in comparison.compare(made(other), made(refused)) if not v.agrees]
    assert wrong.row == "cuda_rules.csv: aten::mm (refuse)"
    assert wrong.program == refused["call"]


def compared(key, theirs, ours):
    """Returns the verdicts about one question of the section acceptance."""
    sides = (recordings.Recording("x", {"acceptance": {key: said}}, {}) for said in (theirs, ours))
    return comparison.compare(*sides)


def test_a_row_of_the_rule_book_is_judged_by_its_own_question():
    key, call = "rules|aten::_add_relu.Tensor|any", "torch.ops.aten._add_relu.Tensor(...)"
    words = "NotImplementedError: Could not run 'aten::_add_relu.Tensor' with arguments from the "
    short = {"call": call, "said": [words + "'CUDA' backend. It is for [CPU]."] * 2}
    long = {"call": call, "said": [words + "'CUDA' backend. This could be because ..."] * 2}
    (same,) = compared(key, long, short)
    assert (same.kind, same.agrees) == ("rows", True)
    (wrong,) = compared(key, {"call": call, "said": ["ok float32"] * 2}, short)
    assert not wrong.agrees
    assert (wrong.row, wrong.program) == ("cuda_rules.csv: aten::_add_relu.Tensor (cpu only)", call)


def test_saved_tensors_are_judged_apart_from_temporaries():
    ours = {"call": "mm", "saved": ["float32[2,2]"], "forward": [512], "backward": [512]}
    theirs = {**ours, "saved": []}
    verdicts = compared("lists|mm", theirs, ours)
    assert {v.kind: v.agrees for v in verdicts} == {"saved": False, "temporaries": True}


def test_frees_in_a_row_have_no_order():
    ours = {"call": "mm", "saved": [], "forward": [512, 1024, -1, -2, 512], "backward": []}
    (_, same) = compared("lists|mm", {**ours, "forward": [512, 1024, -2, -1, 512]}, ours)
    assert same.agrees
    (_, other) = compared("lists|mm", {**ours, "forward": [512, -1, 1024, -2, 512]}, ours)
    assert not other.agrees


def test_rows_without_a_question_are_counted_with_their_reason():
    answers = {"rules|aten::mm|int8": {}, "asserts|aten::gather": {}}
    rows, asked, never = comparison.rows_asked(
        recordings.Recording("x", {"acceptance": answers}, {})
    )
    own = [rule for rule in rules.rows() if not comparison.is_heard(rule)]
    unasked = [rule for rule in rules.rows() if rule.operator in comparison.NOT_ASKED]
    assert (rows, asked, never) == (len(own), 2, len(unasked))
    assert len(unasked) == 4
    assert len(own) < len(rules.rows())
    assert all(comparison.NOT_ASKED.values())


def test_the_report_counts_and_names(recorded, tmp_path, capsys, archive):
    answers = {name: dict(of) for name, of in recorded.answers.items()}
    answers["steps"]["offset|mlp|eager"] += 4
    planted = tmp_path / "planted.zip"
    with zipfile.ZipFile(planted, "w") as file:
        sections = {name: {"answers": of, "seconds": 0} for name, of in answers.items()}
        made = {"schema": "npusim-truth", "version": 1, "options": {}, "sections": sections}
        file.writestr("recording.json", json.dumps(made))
    html = tmp_path / "page.html"
    words = ["truth", "compare", str(planted), "--ours", str(archive), "--html", str(html)]
    assert main(words) == 1
    text = capsys.readouterr().out
    assert "offsets: 1 disagree" in text
    assert "rule R2" in text
    assert "<summary><code>offset|mlp|eager</code>" in html.read_text()
    assert main(["truth", "compare", str(archive), "--ours", str(archive)]) == 0
    assert "No disagreement." in page.html(recorded, recorded, [])


# --- Alone on a machine


def imported(tree):
    """Modules that a tree imports, but for its own package's."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield str(node.module).partition(".")[0]


def annotations(tree):
    """The nodes within annotations."""
    for node in ast.walk(tree):
        for within in (getattr(node, name, None) for name in ("annotation", "returns")):
            yield from ast.walk(within) if within else ()


@pytest.mark.parametrize("path", RECORDER, ids=lambda path: path.stem)
def test_the_recorder_is_of_python_3_9_and_imports_torch_alone(path):
    text = path.read_text()
    tree = ast.parse(text, feature_version=(3, 9))
    assert set(imported(tree)) - sys.stdlib_module_names <= {"torch"}
    # `X | Y` may stand in annotations alone: they are not evaluated.
    assert "from __future__ import annotations" in text or path.stem == "__init__"
    for node in set(ast.walk(tree)) - set(annotations(tree)):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            sides = (node.left, node.right)
            assert not any(isinstance(side, (ast.Subscript, ast.Constant)) for side in sides)
            assert not {side.id for side in sides if isinstance(side, ast.Name)} & set(
                dir(builtins)
            )
        assert not (isinstance(node, ast.keyword) and node.arg == "strict"), node.value.lineno


@pytest.fixture
def packed(tmp_path, capsys):
    """The recorder as one file, where nothing else is."""
    path = tmp_path / "truth_record.pyz"
    assert main(["truth", "script", str(path)]) == 0
    assert "python truth_record.pyz --minutes 10" in capsys.readouterr().out
    return path


def test_without_a_gpu_the_packed_recorder_says_what_is_missing(packed):
    env = without_npusim(NPUSIM_AUTOLOAD="0")
    done = python(packed, cwd=packed.parent, env=env, cold=True)
    assert done.returncode == 1
    missing = "finds no GPU" if torch._C._has_cuda else "is built without CUDA and without ROCm"
    assert missing in done.stdout
    assert list(packed.parent.iterdir()) == [packed]


def test_the_packed_recorder_starts_itself_again_for_other_settings(packed):
    work = packed.parent / "work"
    work.mkdir()
    key = "places|small|expandable_segments:True"
    (work / "only").write_text(json.dumps([key]))
    words = ["--work", work, "--batches", "device|places-1$", "--out", packed.parent / "made.zip"]
    command = [sys.executable, packed, *words]
    assert subprocess.run(command, env=ENVIRONMENT, check=False).returncode == 0
    answered = load(packed.parent / "made.zip").answers["allocation"]
    assert answered[key]["settings"] == "expandable_segments:True"


def test_nothing_private_is_written(monkeypatch):
    monkeypatch.setenv("USER", "marvin")
    monkeypatch.setattr(privacy.socket, "gethostname", lambda: "deepthought.example.org")
    privacy._private.cache_clear()
    text = f"marvin@deepthought: {ROOT}/x.py, /opt/lab/run.py at 0x7f00deadbeef, Process 4711 has"
    assert privacy.scrub({"a": [text]}) == {
        "a": ["<user>@<host>: <path>/x.py, <path>/run.py at 0x<address>, Process <number> has"]
    }
    privacy._private.cache_clear()


def test_an_answer_that_ends_its_process_is_told(tmp_path, monkeypatch):
    def questions():
        yield "dies", lambda: os.kill(os.getpid(), signal.SIGKILL)
        yield "hangs", lambda: time.sleep(60)
        yield "lives", lambda: 7

    made = batches.Batch("answers", questions, limit_s=3)
    monkeypatch.setattr(workers, "_calm", lambda: None)
    monkeypatch.setattr(workers, "_broken_fork", str)
    monkeypatch.setitem(batches.BATCHES, "answers.risky", made)
    assert workers.work("answers.risky", str(tmp_path), time.time() + 60) == 0
    answers = {key: value for _, key, value, _ in journals.read_journal(str(tmp_path))}
    assert answers == {
        "dies": {"ended": "signal 9"},
        "hangs": {"ended": "no answer within 3 s"},
        "lives": 7,
    }


def test_one_question_is_asked_in_its_own_environment(monkeypatch, capsys):
    began = []
    made = batches.Batch(
        "answers", lambda: [("key", lambda: os.environ["TRUTH_X"])], env={"TRUTH_X": "1"}
    )
    monkeypatch.setattr(command, "BATCHES", {"answers.other": made})
    monkeypatch.setattr(command.os, "execv", lambda *words: began.append(words))
    monkeypatch.setenv("TRUTH_X", "0")
    for asked in ("key", "answers|key"):
        assert command.ask_one(asked) == 0
        assert capsys.readouterr().out == '"1"\n'
    assert len(began) == 1, "another Python, where the environment is another"
    assert command.ask_one("no key") == 2


def test_the_longest_answers_go_first_where_an_archive_is_too_large(tmp_path, monkeypatch):
    monkeypatch.setattr(journals, "LARGEST_ARCHIVE", 2000)
    journal = os.open(tmp_path / "journal", os.O_WRONLY | os.O_CREAT)
    journals.write_answer(journal, "answers.asked", "long", os.urandom(5000).hex())
    journals.write_answer(journal, "answers.asked", "short", 1)
    made = journals.write_archive(str(tmp_path / "a.zip"), str(tmp_path))
    assert made["left_out"] == 1
    assert load(tmp_path / "a.zip").answers["answers"] == {"short": 1}


def test_the_page_says_that_there_is_no_recording_yet():
    from pages.truth import FOLDER, NONE, PAGE

    there_are = any(FOLDER.glob("*/recording.zip"))
    assert (NONE in PAGE.read_text()) is not there_are


# --- Files that cannot be used


def written(path, content):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(
            "recording.json", content if isinstance(content, str) else json.dumps(content)
        )
    return path


WHOLE = {"schema": "npusim-truth", "version": 1, "sections": {}}
BAD = {
    "schema": ({**WHOLE, "schema": "other"}, "the schema is 'other', expected 'npusim-truth'"),
    "newer": ({**WHOLE, "version": 9}, "written by a newer recorder"),
    "version": ({**WHOLE, "version": "1"}, "the version of its schema is '1'"),
    "sections": ({"schema": "npusim-truth", "version": 1}, "it has no sections"),
    "unknown": ({**WHOLE, "sections": {"more": {}}}, "the section 'more' is unknown"),
    "empty": ({**WHOLE, "sections": {"rates": {}}}, "the section 'rates' has no answers"),
    "json": ("{", "is not JSON"),
    "list": ([], "the schema is 'list'"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_is_no_recording_is_refused_in_a_sentence(tmp_path, name):
    content, words = BAD[name]
    with pytest.raises(TruthError, match=words):
        load(written(tmp_path / "x.zip", content))


def test_an_archive_that_is_cut_off_is_refused(tmp_path, archive, capsys):
    cut = tmp_path / "cut.zip"
    cut.write_bytes(archive.read_bytes()[:-300])
    assert main(["truth", "compare", str(cut)]) == 2
    assert "not a whole archive" in capsys.readouterr().err
    with pytest.raises(TruthError, match="there is no such file"):
        load(tmp_path / "none.zip")


def chip(name, gib):
    answers = {"identity": {"chip": name, "total_memory": gib << 30}}
    return recordings.Recording("x", answers, {})


@pytest.mark.parametrize(
    ("name", "gib", "spec"),
    [
        ("NVIDIA A100-SXM4-80GB", 79, "a100-80-sxm"),
        ("NVIDIA A100-PCIE-40GB", 39, "a100-40-pcie"),
        ("NVIDIA H100 80GB HBM3", 79, "h100-sxm"),
        ("NVIDIA H100 PCIe", 79, "h100-pcie"),
        ("NVIDIA H200", 139, "h200"),
        ("NVIDIA GeForce RTX 4090", 23, "rtx-4090"),
        ("Tesla T4", 14, "t4"),
        ("Tesla V100-SXM2-32GB", 31, "v100-32-sxm"),
        ("AMD Instinct MI300X", 191, "mi300x"),
        ("NVIDIA Quadro K2000", 2, None),
    ],
)
def test_a_chip_has_its_specification(name, gib, spec):
    assert spec_of(chip(name, gib)) == spec


# --- Fit


def test_half_of_each_section_is_held_out():
    for section in batches.SECTIONS:
        held_out = sum(is_held_out(Key(section, str(number))) for number in range(1000))
        assert 440 < held_out < 560


def test_a_fit_sees_the_visible_half_alone(recorded):
    seen = least_squares.visible(recorded)
    assert all(key.section == "identity" or not is_held_out(key) for key in seen.keys())
    with pytest.raises(TruthError, match="its visible half has no rates"):
        least_squares.fit(replace(recorded, answers={"identity": recorded.answers["identity"]}))


def rates_of(bandwidth, matmul, launch):
    """Rates as a device would have them."""
    rates = {}
    for size in (1 << 24, 1 << 26, 1 << 28):
        for name, factor in (("copy", 2), ("fill", 1), ("add", 3), ("relu", 2)):
            us = factor * size / bandwidth / 1e3
            rates[f"stream|{name}|float32|{size}"] = {"us": us, "bytes": factor * size, "flops": 0}
    for n in (2048, 4096, 8192, 16384):
        for dtype in ("bfloat16", "float16"):
            us = 2 * n**3 / matmul / 1e6
            rates[f"mm|{dtype}|{n}x{n}x{n}"] = {"us": us, "bytes": 0, "flops": 2 * n**3}
    for text in ("x.add_(1)", "x + y", "x.fill_(0)", "x.sum()", "x @ y"):
        rates[f"gap|{text}"] = {"us": launch, "bytes": 0, "flops": 0}
    return rates


def test_a_fit_finds_the_numbers_of_a_chip_that_is_unknown(tmp_path):
    identity = {"chip": "Quadro Q", "capability": [8, 6], "total_memory": 8 << 30}
    identity["multi_processor_count"] = 20
    answers = {"identity": identity, "rates": rates_of(600.0, 50.0, 7.0)}
    made = least_squares.fit(recordings.Recording("q.zip", answers, {}))
    assert made.base is None
    assert made.numbers["memory.bandwidth_gb_s"] == pytest.approx(600, rel=1e-3)
    assert made.numbers["peak_tflops.f16"] == pytest.approx(50, rel=1e-3)
    assert made.numbers["latency_us.launch"] == pytest.approx(7, rel=1e-3)
    path = tmp_path / "q.toml"
    path.write_text(made.text)
    spec = least_squares.specs.load(str(path))
    assert (spec.capability, spec.multiprocessors) == ((8, 6), 20)
    assert spec.numbers["memory.capacity_gib"] == 8


@pytest.mark.parametrize("name", ["h100-torch-2.11", "h200-torch-2.11"])
def test_the_numbers_of_a_recorded_chip_are_those_of_the_fit(name):
    recording = load(ROOT / "tests/truth/recordings" / name / "recording.zip")
    spec, made = specs.load(spec_of(recording)), least_squares.fit(recording)
    own = [key for key, source in spec.sources.items() if source.startswith("npusim truth fit")]
    assert {"achievable.matmul", "achievable_plain.matmul", "link.pageable_gb_s"} < set(own)
    assert {key: spec.numbers[key] for key in own} == pytest.approx(
        {key: made.numbers[key] for key in own}, rel=1e-3
    )
    assert recordings.host_of(recording) == "xeon-vm-16"


# --- Other versions of torch


def of_versions(theirs, version="2.11.0+cu130"):
    """The verdict about one name that the table of versions knows."""
    question = "names|torch.cuda.memory"
    his, mine = (recordings.Recording("x", {"answers": {question: names}}, {}) for names in theirs)
    his.answers["identity"] = {"torch": version}
    mine.answers["identity"] = {"torch": "2.13.0+cpu"}
    (verdict,) = (v for v in comparison.compare(his, mine) if v.kind == "names")
    return verdict


def test_a_name_that_the_older_torch_lacks_is_counted_apart():
    both = {"a": "callable"}
    newer = {**both, "caching_allocator_disabled": "callable"}
    known = of_versions((both, newer))
    assert not known.agrees
    assert known.version == "torch/cuda/memory.py of 2.13"
    assert comparison.disagreements([known]) == []


def test_any_other_answer_is_a_disagreement_all_the_same():
    newer = {"a": "callable", "caching_allocator_disabled": "callable"}
    planted = of_versions(({"a": "class"}, newer))
    assert (planted.agrees, planted.version) == (False, "")
    of_another = of_versions(({"a": "callable"}, newer), "2.13.0+cu130")
    assert (of_another.agrees, of_another.version) == (False, "")
    assert len(comparison.disagreements([planted, of_another])) == 2


def test_a_sample_that_one_torch_has_more_is_not_compared():
    def verdicts(his, mine):
        both = ({"acceptance": {"accepts|trace|float32": {"said": said}}} for said in (his, mine))
        return [
            v.agrees for v in comparison.compare(*(recordings.Recording("x", a, {}) for a in both))
        ]

    assert verdicts(["ok float32"], ["ok float32", "ok float32"]) == [True]
    assert verdicts(["ok float32"], ["ok float64", "ok float32"]) == [False]


def test_an_assert_is_heard_by_the_wait_behind_its_call_at_the_latest():
    def agrees(his, mine):
        both = ({"acceptance": {"asserts|x": {"said": said}}} for said in (his, mine))
        (verdict,) = comparison.compare(*(recordings.Recording("x", a, {}) for a in both))
        return verdict.agrees

    failed = "AcceleratorError: CUDA error: device-side assert triggered"
    assert agrees(["ok", failed, failed, failed], ["ok", "ok", failed, failed])
    assert not agrees(["ok", "ok", "ok", "ok"], ["ok", "ok", failed, failed])
    assert not agrees(["ok", "ok", failed, "ok"], ["ok", "ok", failed, failed])
