# SPDX-License-Identifier: BSD-3-Clause
"""The page of measured times is what its command writes, and its figures are those measured."""

import csv
import json

from pages import measured_times

from torch_npusim.truth.recordings import Key, is_held_out, load


def test_the_page_is_what_its_command_writes():
    assert measured_times.page() == measured_times.PAGE.read_text()


def test_every_program_is_predicted_before_and_now():
    measured = json.loads((measured_times.PROGRAMS / "h200.json").read_text())["programs"]
    assert len(measured) == 34
    for which in measured_times.FILES:
        names = [program.name for program in measured_times.programs(which)]
        assert names == list(measured)


def test_the_times_are_those_of_the_recordings():
    recordings = {
        "h100-sxm": load(measured_times.RECORDINGS / "h100-torch-2.11" / "recording.zip"),
        "h200": load(measured_times.RECORDINGS / "h200-torch-2.11" / "recording.zip"),
    }
    with measured_times.TIMES.open() as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        of = Key("steps" if row["key"].startswith("time") else "rates", row["key"])
        assert float(row["us"]) == recordings[row["chip"]].get(of)["us"]
        assert (row["half"] == "held out") == is_held_out(of)
    asked = sum(
        measured_times.is_time(section, key, answer)
        for recording in recordings.values()
        for section, answers in recording.answers.items()
        if section != "identity"
        for key, answer in answers.items()
    )
    assert len(rows) == asked
