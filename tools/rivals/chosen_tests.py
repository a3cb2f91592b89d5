# SPDX-License-Identifier: BSD-3-Clause
"""A plugin for pytest, for run_torchcts.py: only tests that the file TORCHCTS_TESTS names run."""

import os
from pathlib import Path


def short(node_id: str) -> str:
    """A test's name without where TorchCTS is installed."""
    return node_id.split("torchcts/", 1)[-1]


def pytest_collection_modifyitems(config, items):
    """Deselects the others, or writes down what there is where the file does not exist."""
    file = Path(os.environ["TORCHCTS_TESTS"])
    if not file.exists():
        file.write_text("\n".join(short(item.nodeid) for item in items))
        items.clear()
        return
    wanted = set(file.read_text().splitlines())
    left_out = [item for item in items if short(item.nodeid) not in wanted]
    items[:] = [item for item in items if short(item.nodeid) in wanted]
    config.hook.pytest_deselected(items=left_out)
