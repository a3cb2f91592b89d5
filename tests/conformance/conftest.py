# SPDX-License-Identifier: BSD-3-Clause
"""Logs of runs, and exclusions from pytest's collection: files that the kit runs."""

import pytest

from npusim_conformance.record.log import LogWriter

collect_ignore = ["upstream_style"]


@pytest.fixture
def write(tmp_path):
    """Writes the log of a run; gives its folder."""

    def write(name, *outcomes, profile="smoke"):
        head = {"device": "mychip", "seed": 0, "torch": "2.13.0", "selection": {"profile": profile}}
        with LogWriter(tmp_path / name / "run.jsonl", head, resume=False) as log:
            for outcome in outcomes:
                log.add(outcome)
        return str(tmp_path / name)

    return write
