# SPDX-License-Identifier: BSD-3-Clause
"""Builds examples/custom_op in build/custom_op, where only what changed is compiled again."""

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

from filelock import FileLock

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "examples" / "custom_op"
BUILT = ROOT / "build" / "custom_op"


def build() -> Path:
    """Builds the example as docs/use/custom_op.md says and returns the folder to import it from."""
    BUILT.parent.mkdir(exist_ok=True)
    with FileLock(f"{BUILT}.lock"):
        shutil.copytree(SOURCE, BUILT, dirs_exist_ok=True)
        done = subprocess.run(
            [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"],
            cwd=BUILT,
            # The interpreter's environment has the ninja that compiles, active or not.
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
        )
    if done.returncode:
        raise RuntimeError(f"the example did not build:\n{done.stdout}\n{done.stderr}")
    return BUILT


def load() -> ModuleType:
    """Builds and imports npusim_custom_op."""
    folder = str(build())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module("npusim_custom_op")
