# SPDX-License-Identifier: BSD-3-Clause
"""Frameworks that a launcher starts in two processes: code for CUDA through the alias, beside gloo.

Each program imports its framework in four processes, so only `make parallel` runs them.
"""

import json
import os
import subprocess
import sys

import pytest
from repo.sources import ROOT

SCRIPT = ROOT / "tests" / "distributed" / "launched.py"
TORCHRUN = ["torch.distributed.run", "--nproc-per-node=2"]
TORCHRUN += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
ACCELERATE = ["accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--num_machines=1"]
ACCELERATE += ["--mixed_precision=no", "--dynamo_backend=no", "--main_process_port=0"]


def launched(program, device, folder):
    """Returns the losses and the backend of a program."""
    # accelerate starts several processes on CPU by MPI alone.
    launcher = ACCELERATE if program == "accelerate" and device == "cuda" else TORCHRUN
    path = folder / f"{device}.json"
    environment = {name: value for name, value in os.environ.items() if "NPUSIM" not in name}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "0"}
    if device == "cuda":
        environment |= {"NPUSIM_AS_CUDA": "1", "NPUSIM_DEVICE_COUNT": "2"}
    else:
        environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    done = subprocess.run(
        [sys.executable, "-m", *launcher, str(SCRIPT), program, device, str(path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert path.exists(), done.stdout[-3000:] + done.stderr[-6000:]
    assert done.returncode == 0, done.stderr[-6000:]
    return json.loads(path.read_text())


@pytest.mark.parametrize("program", ["trainer", "accelerate", "lightning_ddp"])
def test_losses_are_gloos(program, tmp_path):
    here, there = (launched(program, device, tmp_path) for device in ("cuda", "cpu"))
    assert here["backend"] == "nccl"
    assert len(here["losses"]) == 4
    assert here["losses"] == pytest.approx(there["losses"], rel=1e-6)


def test_lightnings_fsdp2_is_its_ddp(tmp_path):
    sharded = launched("lightning_fsdp2", "cuda", tmp_path)
    whole = launched("lightning_ddp", "cpu", tmp_path)
    assert sharded["losses"] == pytest.approx(whole["losses"], rel=1e-5)
