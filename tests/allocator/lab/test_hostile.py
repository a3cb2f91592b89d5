# SPDX-License-Identifier: BSD-3-Clause
"""Files that are wrong somewhere: refused in one line or read whole, in bounded memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from allocator.lab import hostile_files


def test_three_hundred_hostile_files(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    hostile_files.write_files(folder)
    command = [sys.executable, hostile_files.__file__, str(folder)]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(ended.stdout)
    assert found["tracebacks"] == []
    assert found["dropped"] == []
    assert found["unclear"] == []
    assert found["read"] + found["refused"] == hostile_files.COUNT
    assert found["refused"] > 200, "most of them are wrong"
    assert found["peak_mib"] < 200
    assert ended.stderr == ""
