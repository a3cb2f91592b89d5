# SPDX-License-Identifier: BSD-3-Clause
"""No test depends on the processor: some of them where kernels use no vectors."""

import os
import subprocess
import sys

import pytest
from repo.sources import ROOT

FILES = ("compile/test_fake_tensors.py", "ops/test_foreach.py")


@pytest.mark.parametrize("file", FILES)
def test_a_processor_without_vectors(file):
    variables = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}
    variables["NPUSIM_TEST_SECONDS"] = ""  # those of this run are written
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", file]
    done = subprocess.run(
        command,
        cwd=ROOT / "tests",
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
