# SPDX-License-Identifier: BSD-3-Clause
"""Numbers of verdicts on snapshots that are exported from the tree's traces, beside a walk."""

import pickle
import re
from pathlib import Path

import pytest
from snapshot_walk import differences

import npusim_lab
from claims.reports import RECORDED
from npusim_lab import Choice, load
from npusim_lab.command import main
from npusim_lab.snapshot_export import to_snapshot

WHOLE = Path(npusim_lab.__file__).parent / "recorded"
FILES = [*sorted(RECORDED.glob("*.npt")), WHOLE / "llama-generate.npt", WHOLE / "vit-train.npt"]


def explained(path, folder, capsys):
    """The snapshot of a trace, and what the command says of it."""
    trace = load(path)
    run = Choice("cuda-2.13", trace.info.get("settings", ""))
    snapshot = to_snapshot(trace.with_attempts(), run, trace.capacity_bytes)
    (folder / "snapshot.pickle").write_bytes(pickle.dumps(snapshot))
    main(["explain", str(folder / "snapshot.pickle")])
    return snapshot, capsys.readouterr().out


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_numbers_are_true_of_the_file(path, tmp_path, capsys):
    snapshot, text = explained(path, tmp_path, capsys)
    compared, found = differences(text, snapshot, 0)
    assert compared >= 6
    assert found == []


@pytest.mark.parametrize("name", ["lengths_that_vary", "no_checkpointing", "losses_of_an_epoch"])
def test_a_number_that_is_not_of_the_file_is_found(name, tmp_path, capsys):
    snapshot, text = explained(RECORDED / f"{name}.npt", tmp_path, capsys)
    first = text.split("\n\n")[0]
    for pattern in (
        r"asks for ([\d.]+)",
        r"on a device of ([\d.]+)",
        r"([\d.]+) MiB in use\.",
        r"([\d.]+) MiB are reserved",
        r"([\d.]+) MiB of that free",
        r"at least ([\d.]+)",
    ):
        begin, end = re.search(pattern, first).span(1)
        wrong = f"{text[:begin]}{float(text[begin:end]) + 1}{text[end:]}"
        assert differences(wrong, snapshot, 0)[1], pattern
