# SPDX-License-Identifier: BSD-3-Clause
"""The child of record_script(): `python -m npusim_lab.recorded_run FOLDER SCRIPT [ARGUMENT...]`."""

from __future__ import annotations

import json
import pickle
import runpy
import sys
from pathlib import Path

from npusim_lab.recording import _about


def main() -> None:
    """Run the script; whatever becomes of it, leave the snapshot and facts of the device."""
    import torch_npusim.npusim as npusim
    from torch_npusim import _C

    folder, script, *arguments = sys.argv[1:]
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).resolve().parent)
    npusim.memory._record_memory_history("all", stacks="python")
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        npusim.synchronize()
        with Path(folder, "snapshot.pickle").open("wb") as file:
            pickle.dump(_C.whole_memory_history(), file, protocol=4)
        about = {device: _about(npusim, device) for device in range(npusim.device_count())}
        Path(folder, "about.json").write_text(json.dumps(about))


if __name__ == "__main__":
    main()
