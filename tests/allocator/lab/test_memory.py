# SPDX-License-Identifier: BSD-3-Clause
"""An import holds little more in memory than its file has bytes."""

from __future__ import annotations

from pathlib import Path

from processes import python

from npusim_lab import generate, save

# Peak memory of the program alone: what ru_maxrss says may be of the process that it was forked of.
_IMPORT = """
import sys
from npusim_lab.command import main
main(["import", *sys.argv[1:]])
status = open("/proc/self/status").read()
print(int(status.split("VmHWM:")[1].split()[0]) << 10)
"""


def test_an_import_of_short_stacks_takes_little_more_than_the_file(tmp_path: Path) -> None:
    sizes, peaks = [], []
    for steps in (100, 400):
        path = tmp_path / f"{steps}.pickle"
        save(generate("kv-cache", steps=steps), path, "snapshot")
        ended = python("-c", _IMPORT, str(path), str(tmp_path / "out.npt"), cold=True, check=True)
        sizes.append(path.stat().st_size)
        peaks.append(int(ended.stdout.splitlines()[-1]))
    assert sizes[1] - sizes[0] > 10 << 20
    # 1.0 for each more byte; it was 1.2 while the replays' memory was kept beside the writer's.
    assert (peaks[1] - peaks[0]) / (sizes[1] - sizes[0]) < 1.1
