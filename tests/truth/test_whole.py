# SPDX-License-Identifier: BSD-3-Clause
"""All questions, and all recordings: only `make truth` runs this."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from pages.truth import FOLDER, PAGE, known, written
from repo.sources import ROOT

from npusim_truth import claims, comparison, least_squares, recordings

ENVIRONMENT = claims.environment("h100-sxm", None, "2.13")
CONTRIBUTED = sorted(FOLDER.glob("*/recording.zip"))


def start(folder):
    words = [sys.executable, *claims.LAUNCH, "--work", str(folder / "work")]
    words += ["--out", str(folder / "npusim.zip"), "--minutes", "20"]
    return subprocess.Popen(words, env=ENVIRONMENT, start_new_session=True)


def interrupted(folder):
    """Records; the recorder is killed among the operators, and started again."""
    running = start(folder)
    journal = folder / "work" / "journal"
    while running.poll() is None and not (
        journal.exists() and journal.read_bytes().count(b"\n") > 300
    ):
        time.sleep(0.1)  # until there is something to lose
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    return start(folder).wait()


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Two whole recordings of npusim, the second one interrupted."""
    folders = [tmp_path_factory.mktemp(name) for name in ("first", "second")]
    with ThreadPoolExecutor(2) as threads:
        statuses = [
            threads.submit(lambda: start(folders[0]).wait()),
            threads.submit(interrupted, folders[1]),
        ]
        assert [status.result() for status in statuses] == [0, 0]
    return [recordings.load(folder / "npusim.zip") for folder in folders]


def test_npusim_agrees_with_npusim(both):
    verdicts = comparison.compare(*both)
    wrong = [(v.of, v.kind, v.theirs, v.ours) for v in verdicts if not v.agrees]
    print(Counter(v.kind for v in verdicts))
    assert wrong == []
    assert {v.kind for v in verdicts} == set(comparison.KINDS)
    # Compilers are what time may run out for.
    first, second = (
        {of for of in recording.keys() if not of.key.endswith("|compiled")} for recording in both
    )
    assert first == second
    assert all(recording.answers["steps"].get("time|mlp|compiled") for recording in both)


def test_no_question_ended_a_runner(both):
    ended = [
        (key, both[0].get(key))
        for key in both[0].keys()
        if isinstance(both[0].get(key), dict) and "ended" in both[0].get(key)
    ]
    assert ended == []


def test_a_fit_gives_the_specification_back(both, tmp_path):
    made = least_squares.fit(both[0])
    spec = tmp_path / "fitted.toml"
    spec.write_text(made.text)
    fitted, held_out = least_squares.errors(both[0], spec)
    print(fitted, held_out)
    assert held_out.count > 50
    assert held_out.median < 0.05


def test_the_page_is_what_the_recordings_say():
    assert written(PAGE.read_text()) == PAGE.read_text(), "stale: python tools/pages/truth.py"


@pytest.mark.parametrize("path", CONTRIBUTED, ids=lambda path: path.parent.name)
def test_a_contributed_recording_disproves_what_is_known(path):
    theirs = recordings.load(path)
    verdicts = comparison.compare(theirs, claims.ask(theirs))
    assert comparison.disagreements(verdicts) == known(path.parent)


def test_private_things_are_not_in_an_archive(both, tmp_path):
    text = json.dumps([recording.answers for recording in both])
    for word in (str(ROOT), str(tmp_path.parent), sys.prefix):
        assert word not in text
