# SPDX-License-Identifier: BSD-3-Clause
"""Claims: npusim stops each wrong program and no mended twin, and the pages say so."""

import inspect
import json
import subprocess

import pytest
import torch
from processes import python
from repo.sources import ROOT
from torch._subclasses.fake_tensor import FakeTensorMode

from claims import children, pages, runner
from claims.claim import briefs, ids, lists, load

CLAIMS = {name: load(name) for name in ids()}
NEW = '''# SPDX-License-Identifier: BSD-3-Clause
"""A list of numbers is read with NumPy.

Defect: NumPy cannot read memory of a device.
Passes on the CPU: the memory is the host's.
Kind: https://github.com/pytorch/pytorch/issues/1
"""

import torch


def wrong(device: str) -> None:
    """Asks the tensor."""
    torch.ones(3, device=device).numpy()


def fixed(device: str) -> None:
    """Asks a copy."""
    torch.ones(3, device=device).cpu().numpy()
'''


@pytest.fixture(scope="module")
def found(request):
    """Outcomes of the claims that this run has selected, on the CPU and on npusim."""
    chosen = [item.callspec.params["name"] for item in request.session.items
              if item.module is request.module and hasattr(item, "callspec")
              and "name" in item.callspec.params]  # fmt: skip
    command = ["-m", "claims", "--json", "--subject", "cpu", "--subject", "npusim", *chosen]
    # Forks of a fork lose torch's pool of threads, which two threads may then find missing.
    done = python(*command, cwd=ROOT, cold=True, timeout=1800)
    assert done.stdout, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", CLAIMS)
def test_the_wrong_program_is_stopped_and_its_twin_is_not(found, name):
    assert runner.as_expected(CLAIMS[name], found[name]), found[name]


def test_a_twin_that_is_stopped_is_not_expected():
    claim = next(one for one in CLAIMS.values() if one.how != "tests" and not one.missed)
    quiet, stopped = {"cpu": "", "npusim": ""}, {"cpu": "", "npusim": "RuntimeError: no"}
    assert runner.as_expected(claim, {"wrong": stopped, "fixed": quiet})
    assert not runner.as_expected(claim, {"wrong": stopped, "fixed": stopped})
    assert not runner.as_expected(claim, {"wrong": quiet, "fixed": quiet})
    assert not runner.as_expected(claim, {"wrong": {**stopped, "cpu": "no"}, "fixed": quiet})


def test_counts():
    of_kind = {how: [c for c in CLAIMS.values() if c.how == how] for how in runner.HOW}
    caught = {how: sum(not claim.missed for claim in of) for how, of in of_kind.items()}
    assert caught["device"] >= 62
    assert caught["ranks"] >= 16
    assert sum(c.how == "tests" and "wrong" in c.variants for c in CLAIMS.values()) >= 122


def test_each_claim_has_an_issue_of_its_own_and_functions_that_say_what_they_do():
    for how in runner.HOW:
        links = [claim.source for claim in CLAIMS.values() if claim.how == how]
        assert len(set(links)) == len(links)
    for claim in (claim for claim in CLAIMS.values() if claim.how in runner.HOW):
        for function in claim.variants.values():
            assert list(inspect.signature(function).parameters) == ["device"], claim.id
            assert function.__doc__, claim.id


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.stem)
def test_pages_are_those_of_the_kept_outcomes(page):
    text, results = page.read_text(), pages.read()
    assert pages.MARK.search(text)
    fresh = pages.filled(text, results).replace(", **stale**", "")
    assert text.replace(", **stale**", "") == fresh, "stale: python -m claims --pages"


def test_outcomes_are_of_all_claims_and_of_a_commit_of_the_history():
    results = pages.read()
    kept = {name for name, claim in CLAIMS.items() if claim.how in runner.HOW}
    assert results["claims"].keys() == kept, "python -m claims --write"
    of_lists = {subject: len(briefs(subject)) for subject in lists()}
    assert {name: of["claims"] for name, of in results["lists"].items()} == of_lists
    assert all(of["as expected"] == of["claims"] for of in results["lists"].values())
    git = ["git", "merge-base", "--is-ancestor", results["commit"], "HEAD"]
    shallow = ["git", "rev-parse", "--is-shallow-repository"]
    said = subprocess.run(shallow, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    if said == "false\n":
        assert subprocess.run(git, cwd=ROOT, check=False).returncode == 0, results["commit"]


def test_a_new_claim_is_one_file_and_a_row_of_the_page(tmp_path, monkeypatch):
    """And kept outcomes that are too old make the table stale."""
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy" / "read_with_numpy.py").write_text(NEW)
    monkeypatch.setattr("claims.claim.SPECIMENS", tmp_path)
    monkeypatch.setattr("claims.claim.LISTS", tmp_path)
    assert ids() == ["numpy/read_with_numpy"]
    monkeypatch.setattr(pages, "RESULTS", tmp_path / "results.json")
    said = {"npusim": "TypeError: no"}
    pages.keep({"commit": "c", "day": "2020-01-01", "torch": "t"}, {ids()[0]: {"wrong": said}})
    text = pages.filled("<!-- claims: museum -->\n<!-- end of museum -->", pages.read())
    assert "Commit c, 2020-01-01, torch t, **stale**." in text
    assert "read_with_numpy.py) | numpy | - | - | - | **caught** | raises TypeError |" in text


@pytest.mark.parametrize("lacking", ["Defect: ", "def fixed"])
def test_a_file_that_lacks_a_part_is_refused(tmp_path, monkeypatch, lacking):
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy" / "one.py").write_text(NEW.replace(lacking, lacking[:3] + "_"))
    monkeypatch.setattr("claims.claim.SPECIMENS", tmp_path)
    with pytest.raises((ValueError, SyntaxError)):
        load("numpy/one")


def test_ends_of_children():
    def prints_and_dies():
        print("last words")
        import os
        import signal

        os.kill(os.getpid(), signal.SIGKILL)

    def never_ends():
        while True:
            pass

    assert children.run(lambda: [1, "a"], 20).value == [1, "a"]
    assert children.run(prints_and_dies, 20).how == "killed by SIGKILL"
    assert children.run(lambda: 1 / 0, 20).how == "exit status 1"
    assert children.run(never_ends, 0.2).how == "no end in 0.2 s"


def test_what_autograds_thread_still_holds_is_no_leak(run_script):
    """In one of twenty runs of this claim it has not let go of the last step in time."""
    done = run_script("""
        import torch
        from claims.device import examine

        torch.set_num_threads(1)
        print({examine("leaks/create_graph_cycle", "fixed", "npusim") for _ in range(100)})
        """)
    assert done.stdout == "{''}\n", done.stdout + done.stderr[-3000:]


@pytest.mark.parametrize(
    ("subject", "wrong", "fixed", "verdict"),
    [
        ("npusim", "RuntimeError: ...", "", pages.CAUGHT),
        ("npusim", "", "", pages.PASSED),
        ("npusim", "RuntimeError: ...", "RuntimeError: ...", pages.FALSE_ALARM),
        ("cpu", "", "RuntimeError: ...", pages.FALSE_ALARM),
        ("meta", "RuntimeError: ...", "RuntimeError: ...", pages.CANNOT_RUN),
        ("fake", "", "RuntimeError: ...", pages.CANNOT_RUN),
        ("meta", "RuntimeError: ...", "", pages.CAUGHT),
    ],
)
def test_a_stopped_fixed_variant_never_counts_as_a_catch(subject, wrong, fixed, verdict):
    assert pages.verdict(subject, wrong, fixed) == verdict


def test_a_process_that_has_used_npusim_runs_no_claim():
    torch.ones(1, device="npusim")
    with pytest.raises(RuntimeError, match="must be forked before npusim is used"):
        runner.prepare()


def test_torch_cannot_move_fake_modules_itself():
    """When this fails, device._apply_to_fake can go."""
    with FakeTensorMode(), pytest.raises(RuntimeError, match="Couldn't swap"):
        torch.nn.Linear(2, 2).to("npusim")
