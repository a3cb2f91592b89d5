# SPDX-License-Identifier: BSD-3-Clause
"""Published peaks that were listed before any of them was predicted.

    python tools/pages/blind_peaks.py SOURCES           # prints the tables
    python tools/pages/blind_peaks.py SOURCES --write   # writes docs/reference/blind_peaks.md

The first list runs the authors' own programs; blind_programs.py has those of the second. SOURCES
is a folder with the packages litgpt (github.com/Lightning-AI/litgpt at 5895df1, April
2024), mingpt (github.com/karpathy/minGPT at 37baab7, January 2023), and what litgpt imports:

    pip install --target SOURCES --no-deps lightning==2.4.0 torchmetrics==1.6.0 \
        lightning-utilities==0.15.3 jsonargparse==4.53.0 typeshed-client==2.15.0
"""

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/blind_peaks.md"
DEVICE = "npusim"
LITGPT = "LitGPT, config_hub/finetune/README.md, April 2024"
MINGPT = "minGPT, pull request 106, January 2023"
MMSEG = "mmsegmentation, configs/{}/README.md, 2020"
FSDP = "Lightning Fabric, guide to FSDP (fsdp.rst), 2023"
SCRIPT = "a script of that guide's author, 2023"


@dataclass
class Row:
    """A published peak.

    Attributes:
        measured: Bytes, with the digits of the source.
        kind: "allocated" or "reserved", as torch.cuda counts them.
        run: The program, if it is one of blind_programs.py.
        model: A name of the package's own configurations.
        batch: Samples of a micro batch; all are padded to 512 tokens in LitGPT.
        rank: Of LoRA; 0: all parameters are trained.
        all_layers: LoRA in all linear layers; else in queries and values.
        early: Gradients are let go of before the forward pass.
    """

    job: str
    source: str
    spec: str
    measured: float
    model: str = ""
    batch: int = 0
    rank: int = 0
    all_layers: bool = False
    early: bool = False
    note: str = field(default="")
    kind: str = "allocated"
    run: Callable[[], None] | None = None


def _lora(name: str, model: str, gigabytes: float, batch: int, rank: int, every: bool) -> Row:
    where = "all linear layers" if every else "queries and values"
    job = f"{name} LoRA of rank {rank} in {where}, bf16, {batch} x 512"
    return Row(job, LITGPT, "rtx-3090", gigabytes * 1e9, model, batch, rank, every)


def _mingpt(model: str, size: int, early: bool) -> Row:
    job = f"{model}, float32, AdamW, 64 x 11, gradients freed {'early' if early else 'late'}"
    note = "job and GPU are not named: taken for demo.ipynb"
    return Row(job, MINGPT, "a100-40-sxm", size, model, 64, early=early, note=note)


ROWS = [
    Row("TinyLlama 1.1B full, bf16, AdamW, 4 x 512", LITGPT, "rtx-3090", 14.10e9,
        "tiny-llama-1.1b", 4),
    _lora("TinyLlama 1.1B", "tiny-llama-1.1b", 13.50, 8, 32, every=True),
    _lora("phi-2", "phi-2", 13.98, 4, 8, every=True),
    _lora("Gemma 2B", "Gemma-2b", 12.62, 2, 8, every=True),
    _lora("StableLM-3B", "stablelm-base-alpha-3b", 8.58, 1, 32, every=False),
    _lora("Llama-2-7B", "Llama-2-7b-hf", 19.77, 2, 32, every=False),
    _lora("Llama-3-8B", "Meta-Llama-3-8B", 19.73, 1, 32, every=False),
    _lora("Mistral-7B", "Mistral-7B-v0.1", 20.66, 2, 32, every=False),
    _lora("Falcon-7B", "falcon-7b", 16.69, 1, 32, every=False),
    _mingpt("gpt-nano", 32019456, early=False),
    _mingpt("gpt-nano", 31666688, early=True),
    _mingpt("gpt2-xl", 30634800640, early=False),
    _mingpt("gpt2-xl", 24607903232, early=True),
]  # fmt: skip


def _program(name: str, *arguments: object) -> Callable[[], None]:
    def run() -> None:
        from pages import blind_programs

        getattr(blind_programs, name)(*arguments)

    return run


def _fcn(depth: int, height: int, width: int, batch: int, classes: int, gigabytes: float) -> Row:
    backbone = f"ResNet-{depth}-D8" if depth else "UNet-S5-D16"
    job = f"FCN, {backbone}, {classes} classes, SGD, SyncBN, 4 GPUs, {batch} x {height} x {width}"
    program = _program("segmentation", depth, height, width, batch, classes, width % 8 == 1)
    source = MMSEG.format("fcn" if depth else "unet")
    return Row(job, source, "v100-32-sxm", gigabytes * 2**30, run=program)


def _transformer(
    source: str,
    strategy: str,
    megabytes: int,
    kind: str,
    checkpointed: bool = False,
    as_in_2_0: bool = False,
) -> Row:
    more = ", activation checkpointing" if checkpointed else ""
    job = f"Transformer of 1B parameters, float32, Adam, {strategy}{more}, 2 GPUs, 8 x 35"
    program = _program("wikitext", strategy, checkpointed, as_in_2_0)
    return Row(job, source, "a100-40-sxm", megabytes * 2**20, kind=kind, run=program)


def _transformers(as_in_2_0: bool) -> list[Row]:
    return [
        _transformer(source, strategy, megabytes, kind, checkpointed, as_in_2_0)
        for source, strategy, megabytes, kind, checkpointed in (
            (FSDP, "DDP", 26953, "allocated", False),
            (FSDP, "NO_SHARD", 23181, "allocated", False),
            (FSDP, "SHARD_GRAD_OP", 11815, "allocated", False),
            (FSDP, "FULL_SHARD", 11578, "allocated", False),
            (SCRIPT, "FULL_SHARD", 15066, "reserved", False),
            (SCRIPT, "FULL_SHARD", 11579, "allocated", True),
            (SCRIPT, "FULL_SHARD", 15716, "reserved", True),
        )
    ]


#: Convolutions, several ranks and reserved memory, which the first list lacks.
SECOND = [
    _fcn(18, 512, 1024, 2, 19, 1.7),
    _fcn(50, 512, 1024, 2, 19, 5.7),
    _fcn(101, 512, 1024, 2, 19, 9.2),
    _fcn(18, 769, 769, 2, 19, 1.9),
    _fcn(50, 769, 769, 2, 19, 6.5),
    _fcn(101, 769, 769, 2, 19, 10.4),
    _fcn(50, 512, 512, 4, 150, 8.5),
    _fcn(101, 512, 512, 4, 150, 12.0),
    _fcn(0, 64, 64, 4, 2, 0.680),
    _fcn(0, 128, 128, 4, 2, 0.968),
    _fcn(0, 256, 256, 4, 2, 2.525),
    *_transformers(as_in_2_0=False),
]

#: The transformer again, with the optimizer of the version that was measured: no blind rows.
FOLLOWED = _transformers(as_in_2_0=True)


def litgpt(row: Row) -> None:
    """Two steps of litgpt/finetune/lora.py or full.py, in bf16-true."""
    import torch

    given = {"lora_r": row.rank, "lora_alpha": 16, "lora_dropout": 0.05}
    if row.rank:
        from litgpt.lora import GPT, Config, mark_only_lora_as_trainable

        for part in ("key", "projection", "mlp", "head"):
            given[f"lora_{part}"] = row.all_layers
        config = Config.from_name(row.model, lora_query=True, lora_value=True, **given)
    else:
        from litgpt.model import GPT, Config

        config = Config.from_name(row.model)
    from litgpt.utils import chunked_cross_entropy

    torch.set_default_dtype(torch.bfloat16)
    with torch.device(DEVICE):
        model = GPT(config)
    torch.set_default_dtype(torch.float32)
    if row.rank:
        mark_only_lora_as_trainable(model)
    model.max_seq_length = 512
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-4)
    for _ in range(2):
        for _ in range(2):
            tokens = torch.zeros(row.batch, 512, dtype=torch.int64).to(DEVICE)
            # Fabric converts the results of a model in bf16-true to the default dtype.
            if row.rank:
                logits = [part.float() for part in model(tokens, lm_head_chunk_size=128)]
                logits[-1] = logits[-1][..., :-1, :]
            else:
                logits = model(tokens).float()[..., :-1, :]
            (chunked_cross_entropy(logits, tokens[..., 1:]) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()


def mingpt(row: Row) -> None:
    """Three steps of mingpt/trainer.py on the data of demo.ipynb: 6 numbers of 3 kinds."""
    import torch
    from mingpt.model import GPT
    from mingpt.trainer import Trainer

    config = GPT.get_default_config()
    config.model_type, config.vocab_size, config.block_size = row.model, 3, 11
    with torch.device(DEVICE):
        model = GPT(config)
    given = Trainer.get_default_config()
    optimizer = model.configure_optimizers(given)
    if torch.__version__ > "2":
        for group in optimizer.param_groups:
            group["foreach"] = False  # as torch 1.13 has it
    for _ in range(3):
        x, y = (torch.zeros(row.batch, 11, dtype=torch.int64).to(DEVICE) for _ in range(2))
        if row.early:
            model.zero_grad(set_to_none=True)
        _logits, loss = model(x, y)
        if not row.early:
            model.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), given.grad_norm_clip, foreach=False)
        optimizer.step()


def predict(row: Row, host: str = "spec") -> int:
    """Returns the peak of a dry run in this process, whose environment has the allocator.

    Gathers that are not limited run ahead as far as the host does: `host` is npusim fit's.
    """
    from torch_npusim.sim import dry_run, specs

    pace = specs.dispatch_us(host, row.spec)
    with dry_run(spec=row.spec, memory="512GiB", temporaries="cuda", dispatch_us=pace) as run:
        if row.run is not None:
            row.run()
        else:
            (litgpt if row.source == LITGPT else mingpt)(row)
        peak = run.peak_allocated() if row.kind == "allocated" else run.peak_reserved()
    gc.collect()
    return peak


def predictions(sources: str, name: str) -> list[int]:
    """Returns the prediction of each row, by a process with CUDA's allocator and the packages."""
    environment = {**os.environ, "NPUSIM_ALLOCATOR": "cuda-2.13", "PYTHONPATH": sources}
    done = subprocess.run(
        [sys.executable, __file__, sources, "--predict", name],
        env=environment, capture_output=True, text=True, timeout=1800, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def table(rows: Sequence[Any], predicted: Sequence[int | None]) -> list[str]:
    """Returns the lines of a table, and of its errors; None is no answer, and no error."""
    lines = [
        "| job | source | what | measured GB | predicted | error | note |",
        "|---|---|---|---|---|---|---|",
    ]
    errors = []
    for row, peak in zip(rows, predicted, strict=True):
        start = f"| {row.job} | {row.source} | {row.kind} | {row.measured / 1e9:.4g} | "
        if peak is None:
            lines.append(start + "- | - | no answer |")
            continue
        error = peak / row.measured - 1
        errors.append(abs(error))
        lines.append(start + f"{peak / 1e9:.4g} | {error:+.1%} | {row.note} |")
    summary = (
        f"Median error {statistics.median(errors):.2%}, worst {max(errors):.2%}, of "
        f"{len(errors)} rows."
    )
    return [*lines, "", summary]


def write(tables: dict[str, list[str]]) -> None:
    """Writes tables into the page, each behind its mark."""
    text, end = PAGE.read_text(), "<!-- end -->\n"
    for name, lines in tables.items():
        head, mark, rest = text.partition(f"<!-- {name} -->\n")
        text = head + mark + "\n".join(lines) + "\n" + end + rest.partition(end)[2]
    PAGE.write_text(text)


LISTS = {"first": ROWS, "second": SECOND, "followed": FOLLOWED}


def main() -> int:
    """Prints or writes the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sources", help="folder with the packages")
    parser.add_argument("--write", action="store_true", help="write the page")
    parser.add_argument("--predict", choices=LISTS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.predict:
        host = "eager" if given.predict == "followed" else "spec"
        print(json.dumps([predict(row, host) for row in LISTS[given.predict]]))
        return 0
    tables = {}
    for name, rows in LISTS.items():
        tables[name] = table(rows, predictions(given.sources, name))
        print("\n".join(tables[name]), flush=True)
    if given.write:
        write(tables)
    return 0


if __name__ == "__main__":
    sys.exit(main())
