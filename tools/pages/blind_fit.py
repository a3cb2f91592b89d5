# SPDX-License-Identifier: BSD-3-Clause
"""The fourth list of blind_peaks.md: peaks that were listed before `npusim fit` predicted them.

    BLIND_SOURCES=FOLDER python tools/pages/blind_fit.py           # prints the table
    BLIND_SOURCES=FOLDER python tools/pages/blind_fit.py --write   # writes the page

blind_fit_programs.py has the programs, and says what is in the folder. `--only WORD` takes some
rows.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from blind_peaks import table, write

VIT = "rasbt/pytorch-memory-optim, logs.md, July 2023"
GPT = "rasbt/LLMs-from-scratch, ch05/10_llm-training-speed, torch 2.6"
MOE = "rasbt/LLMs-from-scratch, ch04/07_moe, 2025"
PEFT = "huggingface/peft, method_comparison/MetaMathQA, July 2026, torch 2.13"
AO = "pytorch/ao, pull request 478, July 2024"
AO_README = "pytorch/ao, torchao/optim/README.md, torch 2.4"
NO_GPU = "GPU not named"


class Row(NamedTuple):
    """A published peak: bytes, "allocated" or "reserved", and the words after the program."""

    job: str
    source: str
    kind: str
    measured: float
    spec: str
    words: str
    note: str = ""


def _vit(job: str, gigabytes: float, words: str) -> Row:
    return Row(f"ViT-L/16, {job}", VIT, "reserved", gigabytes * 1e9, "a100-40-sxm", f"vit {words}",
               NO_GPU)  # fmt: skip


def _gpt(job: str, gibibytes: float, words: str, note: str = "") -> Row:
    return Row(f"GPT-2 124M, {job}", GPT, "reserved", gibibytes * 2**30, "a100-40-sxm",
               f"gpt2 {words}", note)  # fmt: skip


def _peft(job: str, measured: int, method: str, length: int = 768) -> Row:
    note = "lengths differ: taken as their limit; an L40S" if length == 768 else "an L40S"
    return Row(f"Llama 3.2 3B, bf16, AdamW, {job}, 4 x {length}", PEFT, "reserved", measured,
               "rtx-4090 --memory 48GiB", f"metamath {method} {length}", note)  # fmt: skip


ROWS = [
    _vit("float32, Adam, 64 x 224", 26.79, "64 float32 adam 1"),
    _vit("float16 autocast, Adam, 64 x 224", 18.21, "64 mixed adam 1"),
    _vit("bf16, Adam, 64 x 224", 13.82, "64 bfloat16 adam 1"),
    _vit("bf16, Adam, 16 x 224", 5.69, "16 bfloat16 adam 1"),
    _vit("bf16, Adam, 4 steps accumulated, 4 x 224", 3.91, "4 bfloat16 adam 4"),
    _vit("bf16, SGD, 4 steps accumulated, 4 x 224", 2.02, "4 bfloat16 sgd 4"),
    _gpt("float32, AdamW, 8 x 1024", 26.2617, "00_orig.py 8 float32 own 50257 0"),
    _gpt("bf16, AdamW, 8 x 1024", 13.7871, "00_orig.py 8 bfloat16 own 50257 0"),
    _gpt("the same, layers of torch", 11.5645, "01_opt_single_gpu.py 8 bfloat16 written 50257 0"),
    _gpt("the same, fused attention", 5.9004, "01_opt_single_gpu.py 8 bfloat16 own 50257 0"),
    _gpt("the same, compiled", 6.1875, "01_opt_single_gpu.py 8 bfloat16 own 50257 1"),
    _gpt("compiled, 50,304 words, 32 x 1024", 22.5078,
         "01_opt_single_gpu.py 32 bfloat16 own 50304 1"),
    Row("decoder of 5.7 B, bf16, 1,024 new tokens", MOE, "allocated", 11.47 * 2**30, "a100-80-sxm",
        "moe gpt_with_kv_ffn.py 32768 0", NO_GPU),
    Row("the same with 32 experts, 2 for each token", MOE, "allocated", 11.48 * 2**30,
        "a100-80-sxm", "moe gpt_with_kv_moe.py 1024 32", NO_GPU),
    Row("DINO, ViT-S/16, float16 autocast, 8 GPUs, 64 x (2 x 224 + 8 x 96)",
        "facebookresearch/dino, issue 69, June 2021", "allocated", 13871 * 2**20, "v100-32-sxm",
        "dino 64 8", "torch 1.7"),
    Row("swin_v2_t, float16 autocast, AdamW, average of weights, 4 GPUs, 128 x 256",
        "pytorch/vision, pull request 6246, July 2022", "allocated", 14880 * 2**20, "a100-40-sxm",
        "swin 128", NO_GPU),
    _peft("full", 38868615168, "full"),
    _peft("LoRA of rank 32 in queries and values", 22292725760, "lora"),
    _peft("norms alone", 21181235200, "norms"),
    Row("bert-base, float32, AdamW, 2 x 16",
        "optimum-benchmark/cuda, training fill-mask, May 2024, torch 2.2", "reserved", 2520776704,
        "rtx-3090", "bert", "an A10G"),
    Row("ViT-H/14, bf16 autocast, fused AdamW, 4 x 224", AO, "allocated", 12.98e9, "rtx-4090",
        "ao vit_huge_patch14_224.orig_in21k 4 1 0 0", "an RTX 4070 Ti SUPER"),
    Row("ViT-H/14, bf16 autocast, fused AdamW, compiled, 8 x 224", AO_README, "allocated", 12.23e9,
        "rtx-4090", "ao vit_huge_patch14_224.orig_in21k 8 1 0 1", "an RTX 4070 Ti SUPER"),
    Row("ViT-g/14, bf16, fused AdamW, checkpointing, 32 x 224", AO_README, "allocated", 9.82e9,
        "rtx-4090", "ao vit_giant_patch14_dinov2.lvd142m 32 0 1 0",
        "an RTX 4070 Ti SUPER; 224 inferred from the figure itself"),
]  # fmt: skip


#: After the first run: the step of Adam of torch 2.0, a softmax that saves its input, one length.
INFORMED = [
    _vit("bf16, Adam of torch 2.0, 64 x 224", 13.82, "64 bfloat16 adam20 1"),
    _vit("bf16, Adam of torch 2.0, 16 x 224", 5.69, "16 bfloat16 adam20 1"),
    _vit("bf16, Adam of torch 2.0, 4 steps accumulated, 4 x 224", 3.91, "4 bfloat16 adam20 4"),
    _peft("LoRA", 22292725760, "lora", 653),
    _peft("norms alone", 21181235200, "norms", 653),
    _peft("full", 38868615168, "full", 653),
    Row("DINO with the softmax of torch 1.10", "facebookresearch/dino, issue 69, June 2021",
        "allocated", 13871 * 2**20, "v100-32-sxm", "dino 64 8 1", "torch 1.7"),
]  # fmt: skip


LISTS = {"fourth": ROWS, "informed": INFORMED}
LIMIT_SECONDS = 3600  # of a row


def predict(row: Row) -> int | None:
    """Returns the peak that `npusim fit` prints, in bytes, or None where it has no answer."""
    spec, *more = row.spec.split()
    program = [str(Path(__file__).with_name("blind_fit_programs.py")), *row.words.split()]
    command = [sys.executable, "-W", "ignore", "-m", "torch_npusim", "fit", "--json", "--as-cuda",
               "--remedies", "never", "--spec", spec, *more, *program]  # fmt: skip
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS
        )
        devices = json.loads(done.stdout)["devices"].values()
        peak: int | None = max(device[f"peak_{row.kind}"] for device in devices)
    except (subprocess.TimeoutExpired, ValueError, KeyError, TypeError) as problem:
        print(f"{row.job}: {problem}", file=sys.stderr)
        peak = None
    print(row.job, peak, flush=True)
    return peak


def main() -> None:
    """Prints or writes the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="rows whose job or program has this word")
    parser.add_argument("--write", action="store_true", help="write the page")
    given = parser.parse_args()
    if not os.environ.get("BLIND_SOURCES"):
        raise SystemExit("set BLIND_SOURCES")
    if given.write and given.only:
        raise SystemExit("the page has whole tables: --write goes without --only")
    tables = {}
    for name, rows in LISTS.items():
        chosen = [row for row in rows if given.only in row.job + row.words]
        if chosen:
            tables[name] = table(chosen, [predict(row) for row in chosen])
            print("\n".join(tables[name]))
    if given.write:
        write(tables)


if __name__ == "__main__":
    main()
