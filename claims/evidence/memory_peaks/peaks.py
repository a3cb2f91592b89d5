# SPDX-License-Identifier: BSD-3-Clause
"""Peaks of memory that others measured on GPUs, beside those of a dry run of the same job.

python -m claims.evidence.memory_peaks.peaks [ROW...]   # prints the table; fails beyond the goal
"""

import gc
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from claims.evidence.memory_peaks import programs
from torch_npusim.sim import dry_run

ROOT = Path(__file__).resolve().parents[3]

MEDIAN_GOAL, WORST_GOAL = 0.03, 0.10
JOBS = 4  # rows at a time

LITGPT = "LitGPT, tutorials/resource-tables.md, October 2023, torch 2.1"
HF = "transformers, perf_train_gpu_one, 2022"
HF_CONTEXT = 1343 << 20  # the page's own measurement of an idle process with a kernel loaded


@dataclass
class Row:
    """A published peak.

    Attributes:
        measured: Bytes.
        kind: "allocated" or "reserved", as the program that measured it counts.
        outside: Bytes of the measurement that are outside of the allocator.
        why: Why the row cannot match; it then has no part in the error.
    """

    name: str
    job: str
    source: str
    spec: str
    measured: float
    kind: str
    run: Callable[[], None]
    outside: int = 0
    why: str = ""


def rows() -> list[Row]:
    """Returns the table."""
    phi = programs.Sizes(
        2048, 24, 32, 8192, 51200, norm="layer", gated=False, bias=True, parallel=True,
        shared_norm=True, rotary=0.5,
    )  # fmt: skip
    stable = programs.Sizes(
        4096, 16, 32, 16384, 50688, norm="layer", gated=False, bias=True, parallel=True,
        rotary=0.25,
    )  # fmt: skip
    llama = programs.Sizes(4096, 32, 32, 11008, 32000, norm="rms_float_weight")
    llama_13 = programs.Sizes(5120, 40, 40, 13824, 32000, norm="rms_float_weight")

    def lora(name, sizes, batch, length, gigabytes):
        return Row(
            f"{name}-lora-{batch}",
            f"{name} LoRA, bf16, {batch} x {length}",
            LITGPT,
            "a100-80-sxm",
            gigabytes * 1e9,
            "allocated",
            lambda: programs.litgpt_lora(sizes, batch, length),
        )

    def bert(name, job, megabytes, batch, **options):
        return Row(
            f"bert-large-{name}",
            f"bert-large, {job}, {batch} x 512",
            HF,
            "v100-16-sxm",
            megabytes * 2**20,
            "reserved",
            lambda: programs.bert_large(batch, **options),
            HF_CONTEXT,
        )

    small = {"accumulate": 4}
    return [
        lora("phi-1.5", phi, 1, 1044, 4.82),
        lora("phi-1.5", phi, 2, 1044, 6.76),
        lora("phi-1.5", phi, 4, 1044, 10.68),
        lora("StableLM-3B", stable, 1, 1034, 9.69),
        lora("StableLM-3B", stable, 2, 1034, 12.10),
        lora("StableLM-3B", stable, 4, 1034, 16.92),
        lora("Llama-2-7B", llama, 1, 1304, 21.30),
        lora("Llama-2-7B", llama, 2, 1304, 29.07),
        lora("Llama-2-13B", llama_13, 1, 1304, 38.12),
        bert("model", "loaded", 2631, 4, train=False),
        bert("fp32", "fp32, AdamW", 14949, 4),
        bert("small", "fp32, AdamW, 4 steps accumulated", 8681, 1, **small),
        bert("checkpoint", "fp32, AdamW, accumulated, checkpointing", 6775, 1,
             checkpointing=True, **small),
        bert("fp16", "fp16 autocast, AdamW", 13939, 4, half=True),
        bert("fp16-checkpoint", "fp16 autocast, AdamW, accumulated, checkpointing", 7275, 1,
             half=True, checkpointing=True, **small),
        bert("adafactor", "fp32, Adafactor", 12295, 4, adafactor=True),
        bert("all", "fp16 autocast, Adafactor, accumulated, checkpointing", 4847, 1, half=True,
             checkpointing=True, adafactor=True, **small),
        Row("llama-3.2-3b", "Llama 3.2 3B full, bf16, fused AdamW, 2 x 4096 packed",
            "torchtune, README, 2024", "a100-80-sxm", 60.0 * 2**30, "allocated",
            lambda: programs.torchtune_full(programs.LLAMA_3B, 2, 4096)),
        Row("llama-3.2-3b-checkpoint", "the same, chunked loss, checkpointing",
            "torchtune, README, 2024", "a100-80-sxm", 24.9 * 2**30, "allocated",
            lambda: programs.torchtune_full(programs.LLAMA_3B, 2, 4096, checkpointing=True,
                                            chunked=True),
            why="measured with torch.compile, predicted without"),
    ]  # fmt: skip


def predict(name: str) -> dict[str, Any]:
    """Runs a row dry in this process, whose environment has the allocator."""
    (row,) = (row for row in rows() if row.name == name)
    with dry_run(spec=row.spec, memory="512GiB", temporaries="cuda") as run:
        row.run()
        peak = run.peak_allocated() if row.kind == "allocated" else run.peak_reserved()
    gc.collect()
    fits = [_fits(row, share * row.measured) for share in (0.9, 1.1)]
    return {"predicted": peak + row.outside, "fits": fits}


def _fits(row: Row, capacity: float) -> bool:
    """Whether a row fits so many bytes, its memory outside of the allocator included."""
    memory = int(capacity) - row.outside
    with dry_run(spec=row.spec, memory=memory, temporaries="cuda"):
        try:
            row.run()
        except torch.OutOfMemoryError:
            fits = False
        else:
            fits = True
        gc.collect()
    return fits


def in_process(*arguments: str) -> dict[str, Any]:
    """Returns what this file prints in a process with CUDA's allocator."""
    environment = {**os.environ, "NPUSIM_ALLOCATOR": "cuda-2.13"}
    done = subprocess.run(
        [sys.executable, "-m", "claims.evidence.memory_peaks.peaks", *arguments],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"{arguments}: {done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def table(only: list[str]) -> list[float]:
    """Prints the table; returns the errors of rows that can match."""
    errors: list[float] = []
    print("| job | source | what | measured GiB | predicted | error | fits 0.9, 1.1 of it | note |")
    print("|---|---|---|---|---|---|---|---|")
    chosen = [row for row in rows() if not only or row.name in only]
    with ThreadPoolExecutor(JOBS) as pool:
        answers = list(pool.map(lambda row: in_process("--predict", row.name), chosen))
    for row, found in zip(chosen, answers, strict=True):
        error = found["predicted"] / row.measured - 1
        verdicts = ", ".join("yes" if fits else "no" for fits in found["fits"])
        if not row.why:
            errors.append(abs(error))
        print(
            f"| {row.job} | {row.source} | {row.kind} | {row.measured / 2**30:.2f} | "
            f"{found['predicted'] / 2**30:.2f} | {error:+.1%} | {verdicts} | {row.why} |"
        )
    return errors


def main() -> int:
    """Prints the table, or with --predict one answer; returns 1 beyond the goal."""
    if "--predict" in sys.argv:
        print(json.dumps(predict(sys.argv[-1])))
        return 0
    errors = table(sys.argv[1:])
    median, worst = statistics.median(errors), max(errors)
    print(f"Median error {median:.1%}, worst {worst:.1%}, of {len(errors)} rows.")
    return int(median > MEDIAN_GOAL or worst > WORST_GOAL)


if __name__ == "__main__":
    sys.exit(main())
