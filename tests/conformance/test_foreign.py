# SPDX-License-Identifier: BSD-3-Clause
"""Backends of others: what lacks a part, ends at import or breaks the CPU is judged for what it is.

The defects and the scoreboard that are meant for other backends are tried on npusim.
"""

import dataclasses
import json
import os
import subprocess
import sys
import warnings
from types import SimpleNamespace

import pytest
import torch
from conformance.test_runner import environment
from pages import foreign, foreign_sources
from processes import python
from repo.sources import ROOT
from torch.library import Library

from npusim_conformance.backend.device import DeviceUnderTest, DeviceUnusable, load
from npusim_conformance.backend.expectations import Expectations
from npusim_conformance.contracts import contracts
from npusim_conformance.inputs.transfer import Transfer
from npusim_conformance.judge import agreement, attribution
from npusim_conformance.record import log
from npusim_conformance.verdict import Mismatch, Status

# A sample of the defects, and the contract of these that finds each.
FOUND_BY = {
    "set_starts_at_zero": "storage/set_takes_a_view",
    "waiting_makes_current": "accelerator/questions_leave_the_current_device",
    "hooks_run_on_the_first_device": "autograd/hooks_find_their_device_current",
    "all_devices_change_their_stream": "stream/each_device_has_its_current_stream",
    "out_of_memory_keeps_the_device": "device/errors_leave_current_device",
    "copies_count_elements_only": "copy/copies_broadcast",
    "chances_are_of_the_targets_dtype": "rng/chances_hold_in_every_dtype",
    "generators_say_the_first_device": "rng/generators_name_their_device",
}


def test_contracts_find_the_defects_that_are_theirs(tmp_path):
    chosen = ",".join(name.partition("/")[2] for name in FOUND_BY.values())
    path = f"{ROOT / 'tests' / 'conformance'}:{ROOT}:{ROOT / 'conformance'}"
    script = ROOT / "tests" / "conformance" / "one_after_the_other.py"
    told = {**environment("", tmp_path, ""), "PYTHONPATH": path, "DEFECTS_IN": "torch_npusim"}
    done = python(script, tmp_path, chosen, *FOUND_BY, env=told)
    assert done.returncode == 0, done.stderr
    found = {
        name: {
            case.removeprefix("contract:")
            for case, outcome in log.read(tmp_path / name).outcomes.items()
            if outcome.status is not Status.PASS
        }
        for name in FOUND_BY
    }
    assert found == {name: {contract} for name, contract in FOUND_BY.items()}


def missing(right, self, *given):
    raise NotImplementedError("Could not run 'aten::set_.source_Storage_storage_offset'")


def without_offset(right, self, storage, offset, *given):
    return right(self, storage, 0, *given)


@pytest.mark.parametrize("wrong", [missing, without_offset])
def test_samples_are_built_without_a_right_set(wrong, monkeypatch):
    right = torch.Tensor.set_

    def set_(self, *given):
        return right(self, *given) if self.is_cpu else wrong(right, self, *given)

    base = torch.arange(12.0)
    views = (base.view(3, 4).t()[1:], base[5:], base.view(torch.int32)[1::2])
    monkeypatch.setattr(torch.Tensor, "set_", set_)
    moved = Transfer("npusim")(views)
    assert len({view.untyped_storage().data_ptr() for view in moved}) == 1
    for here, there in zip(views, moved, strict=True):
        assert there.stride() == here.stride()
        assert there.storage_offset() == here.storage_offset()
        assert there.cpu().tolist() == here.tolist()


def test_samples_have_their_own_dtype_where_views_of_bytes_lose_it(monkeypatch):
    right, viewed = torch.Tensor.set_, torch.Tensor.view

    def set_(self, *given):
        if self.device.type != "cpu":
            raise NotImplementedError("Cannot access storage of OpaqueTensorImpl")
        return right(self, *given)

    def view(self, *given):
        return self if self.device.type != "cpu" else viewed(self, *given)

    monkeypatch.setattr(torch.Tensor, "set_", set_)
    monkeypatch.setattr(torch.Tensor, "view", view)
    strided = torch.arange(12.0).view(3, 4).t()[1:]
    moved = Transfer("npusim")(strided)
    assert (moved.dtype, moved.stride()) == (torch.float32, strided.stride())
    assert moved.cpu().tolist() == strided.tolist()


def test_the_overload_at_fault_is_found_where_tensors_are_opaque(monkeypatch):
    right = torch.Tensor.untyped_storage

    def untyped_storage(self):
        if self.device.type != "cpu":
            raise NotImplementedError("Cannot access storage of OpaqueTensorImpl")
        return right(self)

    def examine(device):
        x = torch.arange(4.0).to(device).view(2, 2)
        agreement.Agreement(False).check(torch.ones(2, 2), x.t() * 2, device)

    table = Library("aten", "IMPL")
    table.impl("mul.Tensor", lambda x, y: x + 3, "PrivateUse1")
    monkeypatch.setattr(torch.Tensor, "untyped_storage", untyped_storage)
    try:
        found = attribution.find(examine, torch.device("npusim"))
    finally:
        table._destroy()
    assert (found.overload, found.fault) == ("aten::mul.Tensor", "wrong result")
    assert "torch.ops.aten.mul.Tensor" in found.script


def test_views_that_are_wrong_by_as_strided_are_put_on_it():
    right = torch.library.get_kernel("aten::as_strided", "PrivateUse1")
    table = Library("aten", "IMPL")

    def as_strided(keys, base, size, stride, offset=None):
        return right.call_boxed(keys, base, size, stride, offset or 0)  # not the tensor's own

    def examine(device):
        part = torch.arange(12.0).view(3, 4).to(device)[1:]
        agreement.Agreement(False).check(torch.tensor([[4.0, 8], [5, 9], [6, 10], [7, 11]]),
                                         part.t(), device)  # fmt: skip

    table.impl("as_strided", as_strided, "PrivateUse1", with_keyset=True)
    try:
        found = attribution.find(examine, torch.device("npusim"))
    finally:
        table._destroy()
    assert (found.overload, found.fault) == ("aten::as_strided", "wrong result")
    assert "torch.ops.aten.as_strided.default(x0, [4, 2], [1, 4])" in found.script


@pytest.mark.parametrize("ends", ["raise SystemExit(0)", "import sys; sys.exit(3)", "1 / 0"])
def test_a_backend_that_ends_at_import_is_said_to(tmp_path, monkeypatch, ends):
    (tmp_path / "ending_backend.py").write_text(ends)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(DeviceUnusable, match=r"importing 'ending_backend' failed: (System|Zero)"):
        load("ending_backend")


def test_an_import_that_changes_settings_is_noticed(tmp_path, monkeypatch):
    lines = "import torch, warnings; torch.manual_seed(3); torch.set_flush_denormal(True)"
    lines += "; warnings.filterwarnings('ignore', 'beta')"
    (tmp_path / "seeding_backend.py").write_text(lines)
    monkeypatch.syspath_prepend(tmp_path)
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        torch.rand(1)
        try:
            loaded = DeviceUnderTest("cpu", "seeding_backend", Expectations())
        finally:
            torch.set_flush_denormal(False)
        assert loaded.changed_by_import == [
            "the CPU's generator",
            "the filters of warnings",
            "whether subnormal numbers are zero",
        ]
        keeps = contracts()["import_changes_no_setting"].check
        with pytest.raises(Mismatch, match="the import changed the CPU's generator, the filters"):
            keeps(SimpleNamespace(under_test=loaded))
        assert DeviceUnderTest("cpu", "seeding_backend", Expectations()).changed_by_import == []


def test_what_the_cpu_fails_only_beside_the_backend_is_the_backends(tmp_path):
    kit = ["-m", "npusim_conformance", "run", "--device", "npusim", "--import", "wrong_operators"]
    chosen = ["--ops", "op:add", "--props", "forward", "--dtypes", "float32"]
    told = environment("refuse:add", tmp_path, "torch_npusim")
    done = python(*kit, *chosen, "--quiet", "--jobs", "1", "--out", str(tmp_path / "o"), env=told)
    outcomes = log.read(tmp_path / "o").outcomes
    assert outcomes.keys() == {"op:add/forward/float32"}, done.stderr
    (outcome,) = outcomes.values()
    assert outcome.status is Status.FAIL
    said = "the CPU fails too, but only with the backend: RuntimeError: refused"
    assert outcome.message.startswith(said)


def test_the_scoreboard_counts_a_run_and_names_who_is_absent(tmp_path, monkeypatch, capsys):
    sources, out, page = tmp_path / "sources", tmp_path / "out", tmp_path / "page.md"
    (sources / "here").mkdir(parents=True)
    (sources / "here" / "COMMIT").write_text("abc123\n")
    (sources / "broken").mkdir()
    (out / "here").mkdir(parents=True)
    (out / "here" / "report.json").write_text("{}")  # so that the run is taken as it is
    outcomes = (
        {"case": "op:add/forward/float32", "status": "flake"},
        {"case": "op:add/forward/float32", "status": "pass"},  # the last of a case counts
        {"case": "op:sin/forward/float32", "status": "fail", "message": "result: largest error 2",
         "culprit": "aten::sin", "repro": "import torch"},
        {"case": "op:cos/forward/float32", "status": "crash", "message": "SIGSEGV",
         "culprit": "aten::cos", "repro": "import torch"},
        {"case": "op:tan/forward/float32", "status": "n/a"},
        {"case": "op:abs/forward/int64", "status": "fail", "culprit": "aten::abs",
         "message": "result: 2 of 9 elements differ from those on the CPU"},
        {"case": "contract:copy/cpu", "status": "pass"},  # no part of the core
    )  # fmt: skip
    lines = [json.dumps(record) for record in ({}, *outcomes)]
    (out / "here" / "run.jsonl").write_text("\n".join(lines))
    openreg = "| torch_openreg | older | 2.0 | 9 | 9 | 0 | 0 | 0 | 0 |"
    old = (
        "# Old",
        f"{foreign.RULER}\n{openreg}",
        f"## The whole smoke profile\n\n{foreign.RULER}\n{openreg.replace('9', '12')}",
        "## Not to be had\nx",
        "## here: the gravest findings\nstale",
        "## By hand: 3\nkept",
    )
    page.write_text("\n\n".join(old))
    monkeypatch.setattr(foreign, "PAGE", page)
    others = ["here:torch_npusim:npusim", "broken:no_such_backend:x"]
    chosen = [part for other in others for part in ("--backend", other)]
    vendor = tmp_path / "vendor"
    vendor.mkdir()
    asked = {"case": "contract:copy/cpu", "status": "pass"}
    head = {"torch": "2.9"}
    (vendor / "run.jsonl").write_text("\n".join(map(json.dumps, (head, outcomes[1], asked))))
    chosen += ["--log", f"chip x board={vendor}"]
    monkeypatch.setattr(
        sys, "argv", ["foreign.py", str(sources), "--offline", "--page", "--out", str(out), *chosen]
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    assert foreign.main() == 0
    text = page.read_text()
    lines = [
        f"| here | abc123 | {torch.__version__} | {n} | {n - 3} | 2 | 2 | 1 | 0 |" for n in (4, 5)
    ]
    whole = text.index("## The whole smoke profile")
    assert text.index(lines[0]) < whole < text.index(lines[1])
    assert "| torch_mcpu | no folder torch_mcpu |" in text
    assert text.index(openreg) < whole < text.index(openreg.replace("9", "12"))
    assert "| torch_openreg | no folder" not in text, "its row is of an earlier run"
    assert "| broken | ModuleNotFoundError: No module named 'no_such_backend' |" in text
    assert text.index("`op:sin/forward/float32`, at fault `aten::sin`") < text.index("aten::cos")
    assert "torch_mcpu" in capsys.readouterr().out
    for n in (1, 2):
        assert f"| chip x board | a vendor's run | 2.9 | {n} | {n} | 0 | 0 | 0 | 0 |" in text
    assert text.endswith("\n\n## By hand: 3\nkept\n"), "the command has not written this section"
    assert [text.count(heading) for heading in ("## Not", "## here", "stale")] == [1, 1, 0]


@pytest.fixture
def theirs(tmp_path):
    """A repository that holds a backend in a folder; (its place, a revision)."""
    place = tmp_path / "theirs"
    (place / "part").mkdir(parents=True)
    (place / "part" / "chip.py").write_text("old = 1\n")
    (place / "part" / "build.py").write_text("open('built', 'w').close()\n")

    def git(*arguments):
        named = ("-c", "user.name=x", "-c", "user.email=x@y")
        done = subprocess.run(
            ["git", *named, *arguments], cwd=place, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    git("init", "-q")
    git("config", "uploadpack.allowAnySHA1InWant", "true")
    git("config", "uploadpack.allowFilter", "true")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    return f"file://{place}", git("rev-parse", "HEAD")


def test_a_backend_is_cloned_edited_and_built(theirs, tmp_path):
    edits, sources = (("chip.py", "old", "new"),), tmp_path / "sources"
    source = foreign_sources.Source(*theirs, "part", edits, ("build.py",), "g++ 12")
    foreign_sources.fetch("chip", source, sources)
    folder = sources / "chip"
    assert (folder / "chip.py").read_text() == "new = 1\n"
    assert (folder / "built").exists()
    assert (folder / "COMMIT").read_text() == f"{theirs[1][:7]}, g++ 12\n"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"repository": "file:///nowhere"}, "git fetch: "),
        ({"edits": (("chip.py", "gone", ""),)}, "chip.py has nothing to edit for this torch"),
        ({"build": ("-c", "1 / 0")}, "-c: ZeroDivisionError: division by zero"),
    ],
)
def test_a_backend_that_is_not_to_be_had_has_a_reason(theirs, tmp_path, change, said):
    source = dataclasses.replace(foreign_sources.Source(*theirs, "part"), **change)
    with pytest.raises(foreign_sources.NotToBeHad, match=said):
        foreign_sources.fetch("chip", source, tmp_path / "sources")
    assert not (tmp_path / "sources" / "chip").exists()


def test_a_source_is_pinned_for_each_backend_that_can_be_cloned():
    named = {backend.folder for backend in foreign.BACKENDS}
    assert foreign_sources.SOURCES.keys() <= named
