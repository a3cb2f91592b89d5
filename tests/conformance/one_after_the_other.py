# SPDX-License-Identifier: BSD-3-Clause
"""Runs the kit on npusim with one defect after the other: OUT CONTRACTS DEFECT...

One process has torch loaded; each defect is imported by the kit's workers.
"""

import os
import sys

from npusim_conformance.cli import main
from npusim_conformance.run import runner

runner.RETRIES_MAX = 0  # what fails once has found the defect
out, contracts, *defects = sys.argv[1:]
for name in defects:
    os.environ["DEFECT"] = name
    arguments = ["run", "--device", "npusim", "--import", "defects", "--quiet", "--jobs", "1"]
    if main(
        [*arguments, "--ops", "contract:*", "--props", contracts, "--out", f"{out}/{name}"]
    ) not in (0, 1):
        raise SystemExit(f"{name}: no run")
