# SPDX-License-Identifier: BSD-3-Clause
"""Frameworks that a launcher starts in two processes: code for CUDA through the alias, beside gloo.

Each program imports its framework in four processes, so only `make parallel` runs them.
"""

import json
import re

import pytest
from processes import python, without_npusim
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
    environment = without_npusim(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="0")
    if device == "cuda":
        environment |= {"NPUSIM_AS_CUDA": "1", "NPUSIM_DEVICE_COUNT": "2"}
    else:
        environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    done = python("-m", *launcher, SCRIPT, program, device, path, env=environment)
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


def titans_losses(ranks, folder, *options):
    """Returns the losses that torchtitan's trainer logs for its debug model."""
    paths = [ROOT, ROOT / "build" / "titan", SCRIPT.parent]
    environment = without_npusim(
        PYTHONPATH=":".join(map(str, paths)),
        OMP_NUM_THREADS="1",
        NPUSIM_AS_CUDA="1",
        NPUSIM_DEVICE_COUNT=str(ranks),
        TORCHINDUCTOR_CACHE_DIR=str(folder / "cache"),
    )
    command = ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
    command += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "-m", "torchtitan.train"]
    command += ["--experimental.custom_import", "titan_tokens", "--model.name", "tokens"]
    command += ["--model.flavor", "debugmodel", "--training.seq_len", "32", "--training.steps", "3"]
    command += ["--training.local_batch_size", "2", "--metrics.log_freq", "1", *options]
    command += ["--job.dump_folder", str(folder), "--training.seed", "1"]
    done = python(*command, env=environment, timeout=900)
    assert done.returncode == 0, done.stderr[-6000:]
    return [float(loss) for loss in re.findall(r"loss: *(?:\S*m)?([0-9.]+)", done.stderr)][::ranks]


@pytest.mark.parametrize("ranks", [2, 4])
def test_torchtitan_trains_compiled_with_a_cold_and_a_warm_cache(ranks, tmp_path):
    plain = titans_losses(ranks, tmp_path)
    assert len(plain) == 3
    cold, warm = (titans_losses(ranks, tmp_path, "--training.compile") for _ in range(2))
    assert cold == pytest.approx(plain, rel=1e-2)  # in bfloat16
    assert warm == cold
