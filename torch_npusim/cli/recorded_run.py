# SPDX-License-Identifier: BSD-3-Clause
"""`python -m torch_npusim.cli.recorded_run FOLDER SCRIPT [ARGUMENT...]`: a script, recorded.

The child of npusim_lab.record_script(), which reads the folder: snapshot.pickle is a snapshot with
the whole history, about.json has policy, settings and capacity of each device.
"""

import json
import os
import pickle
import runpy
import sys
from pathlib import Path

import torch_npusim.npusim as npusim
from torch_npusim import _C


def begin() -> None:
    """Starts to record; the history that was kept before is forgotten."""
    npusim.memory._record_memory_history("all", stacks="python", clear_history=True)


def leave(folder: Path) -> None:
    """Writes the two files, and records no longer."""
    npusim.synchronize()
    with (folder / "snapshot.pickle").open("wb") as file:
        pickle.dump(_C.whole_memory_history(), file, protocol=4)
    npusim.memory._record_memory_history(None)
    policy, _, settings = _C.allocator_choice().partition(",")
    more = os.environ.get("PYTORCH_ALLOC_CONF", "")
    facts = {"policy": policy, "settings": ",".join(text for text in (settings, more) if text)}
    about = {
        device: facts | {"capacity_bytes": npusim.mem_get_info(device)[1]}
        for device in range(npusim.device_count())
    }
    (folder / "about.json").write_text(json.dumps(about))


def main() -> None:
    """Runs the script; whatever becomes of it, the files are left."""
    folder, script, *arguments = sys.argv[1:]
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).resolve().parent)
    begin()
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        leave(Path(folder))


if __name__ == "__main__":
    main()
