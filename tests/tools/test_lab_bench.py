# SPDX-License-Identifier: BSD-3-Clause
"""The laboratory's benchmark runs, and says of each demand whether it was met."""

import json

from bench import lab


def test_a_row_says_whether_its_demand_is_met():
    assert lab.Row.at_most("a", 1.0, "s", 2).reached is True
    assert lab.Row.at_most("a", 3.0, "s", 2).reached is False
    assert lab.Row.at_least("a", 3.0, "x", 2).reached is True
    assert lab.Row.at_least("a", 1.0, "x", 2) == lab.Row("a", 1.0, "x", ">= 2", False)


def test_it_measures_everything_on_small_inputs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(lab, "NATIVE", tmp_path / "not built")
    words = ["--events", "5000", "--snapshot-megabytes", "1", "--runs", "1"]
    assert lab.main([*words, "--json", str(tmp_path / "lab.json")]) == 0
    printed = capsys.readouterr()
    assert "std::set is left out" in printed.err
    results = json.loads((tmp_path / "lab.json").read_text())
    names = " ".join(row["name"] for row in results["rows"])
    for what in (
        "start-up, --help",
        "replay, 5,000",
        "20 configurations",
        "import, snapshot of 1 MB",
    ):
        assert what in names
        assert what in printed.out
    assert all(row["value"] > 0 for row in results["rows"])
    assert results["machine"]["cores"] > 0
