# SPDX-License-Identifier: BSD-3-Clause
"""A sample of kills.py: exporters die, and nothing stays behind."""

import pytest
import rank_processes
from sharing import kills, partners


@pytest.mark.parametrize("seed", [0, 1])
def test_killed_exporters_leave_nothing_behind(seed):
    """(rules M10, M11)"""
    killed, found = kills.run(rank_processes.context(), tensors=100, processes=4, seed=seed)
    assert killed > 0
    assert found == [{**kills.NOTHING, "descriptors": 0}] * 4


def test_what_stays_behind_is_found():
    """The count of test_killed_exporters_... sees a tensor that somebody keeps."""
    with partners.partner() as exporter, partners.partner() as importer:
        exporter.call(kills.left)
        importer.call(kills.left)
        importer.call(kills.receive, exporter.call(kills.export, 5000, 1.0, False), 5000, 1.0, 0)
        found = exporter.call(kills.left)
        assert found["allocated"] >= 20000
        assert found["mappings"] > 0
        importer.call(partners.drop)
        found = exporter.call(kills.left)
        assert {name: found[name] for name in kills.NOTHING} == kills.NOTHING
