# SPDX-License-Identifier: BSD-3-Clause
"""The bug museum: npusim catches what it says it catches, and stops no program that is right."""

import inspect
import json

import pytest
import torch
from museum import harness, report
from repo.sources import ROOT
from torch._subclasses.fake_tensor import FakeTensorMode

from examples.bug_museum import exhibit

PAGE = ROOT / "docs" / "reference" / "bug_museum.md"
NAMES = exhibit.names()


@pytest.fixture(scope="module")
def exhibits():
    return [exhibit.load(name) for name in NAMES]


@pytest.fixture
def findings(run_script):
    # Forks of a fork lose torch's pool of threads, which two threads may then find missing.
    done = run_script(
        f"""
        import runpy, sys
        sys.argv[1:] = ["--json"]
        runpy.run_path({str(ROOT / "tools/museum/run.py")!r}, run_name="__main__")
        """,
        cold=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return [report.Finding(**found) for found in json.loads(done.stdout)]


def test_there_are_at_least_forty(exhibits):
    assert len(exhibits) >= 40


def test_each_exhibit_says_what_why_and_links_an_issue_of_its_own(exhibits):
    links = [shown.link for shown in exhibits]
    assert len(set(links)) == len(links)
    for shown in exhibits:  # load() has refused a docstring that lacks a part
        assert shown.title
        assert shown.what
        assert shown.why


def test_both_variants_take_a_device_and_say_what_they_do(exhibits):
    for shown in exhibits:
        for function in shown.variants.values():
            assert list(inspect.signature(function).parameters) == ["device"], shown.name
            assert function.__doc__, shown.name


def test_the_table_is_as_committed(findings):
    on_npusim = [found.verdicts["npusim"] for found in findings]
    assert sorted(found.name for found in findings) == NAMES
    assert all(found.as_expected() for found in findings)
    assert on_npusim.count(report.CAUGHT) >= 0.9 * len(findings)
    assert report.FALSE_ALARM not in on_npusim
    # No exhibit counts that plain CPU shows as well.
    assert {found.verdicts["cpu"] for found in findings} == {report.PASSED}
    if torch.version.cuda:  # `.cuda()` looks for a driver; a build for the CPU has no CUDA
        (found,) = [found for found in findings if found.name == "hard_coded_cuda"]
        assert found.stopped["wrong"]["npusim"].startswith("RuntimeError: ")
        found.stopped["wrong"]["npusim"] = "AssertionError: Torch not compiled with CUDA enabled"
    assert report.tables(findings) in PAGE.read_text(), (
        f"stale: python tools/museum/run.py --page {PAGE.relative_to(ROOT)}"
    )


def test_what_autograds_thread_still_holds_is_no_leak(run_script):
    """In one of twenty runs of this exhibit it has not let go of the last step in time."""
    done = run_script("""
        import torch
        import sys

        sys.path.insert(0, "tools")
        from museum.harness import examine

        torch.set_num_threads(1)
        print({examine("create_graph_cycle", "fixed", "npusim") for _ in range(100)})
        """)
    assert done.stdout == "{''}\n", done.stdout + done.stderr[-3000:]


@pytest.mark.parametrize(
    ("subject", "wrong", "fixed", "verdict"),
    [
        ("npusim", "RuntimeError: ...", "", report.CAUGHT),
        ("npusim", "", "", report.PASSED),
        ("npusim", "RuntimeError: ...", "RuntimeError: ...", report.FALSE_ALARM),
        ("cpu", "", "RuntimeError: ...", report.FALSE_ALARM),
        ("meta", "RuntimeError: ...", "RuntimeError: ...", report.CANNOT_RUN),
        ("fake", "", "RuntimeError: ...", report.CANNOT_RUN),
        ("meta", "RuntimeError: ...", "", report.CAUGHT),
    ],
)
def test_a_stopped_fixed_variant_never_counts_as_a_catch(subject, wrong, fixed, verdict):
    assert report.verdict(subject, wrong, fixed) == verdict


def test_a_process_that_has_used_npusim_forks_no_exhibit():
    torch.ones(1, device="npusim")
    with pytest.raises(RuntimeError, match="must be forked before npusim is used"):
        harness.examine_in_child("raw_pointer_on_the_host", "fixed", "npusim")


def test_torch_cannot_move_fake_modules_itself():
    """When this fails, harness._apply_to_fake can go."""
    with FakeTensorMode(), pytest.raises(RuntimeError, match="Couldn't swap"):
        torch.nn.Linear(2, 2).to("npusim")
