# SPDX-License-Identifier: BSD-3-Clause
"""Published times of programs on real chips: claims/evidence/step_times/rows.csv.

    python -m claims.evidence.step_times.rows CLONES           # the rows of the fit
    python -m claims.evidence.step_times.rows CLONES --blind   # others of timm's: build/published

CLONES is a folder with git directories of the repositories in SOURCES, named owner+name/repo. The
filter and the split below were fixed before any parameter was fitted to these rows: every row of
the named files is taken or counted in DROPPED with its reason.
"""

import csv
import hashlib
import io
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).parent
#: Rows that no fit and nobody who shaped the model has seen.
BLIND = Path(__file__).parents[3] / "build" / "published"
FIELDS = (
    "source", "file", "chip", "family", "model", "size", "batch", "dtype", "layout", "mode",
    "torch", "value", "unit", "parameters",
)  # fmt: skip

#: repository -> the commit that was read
SOURCES = {
    "huggingface/pytorch-image-models": "aa4b5850c1543fa488abf260f18390eda46cf85d",
    "NVIDIA/DeepLearningExamples": "729963dd47e7c8bd462ad10bfac7a7b0b604e6dd",
    "sitar-lab/NeuSight": "6945927d9afcca2b9daf021f8395e53edc5b4eef",
}
TIMM, DLE, NEUSIGHT = SOURCES

# The newest eager file of each chip, layout and mode.
_TIMM_FILES = {
    "benchmark-infer-amp-nchw-pt240-cu124-rtx3090.csv": "rtx-3090",
    "benchmark-infer-amp-nhwc-pt240-cu124-rtx3090.csv": "rtx-3090",
    "benchmark-infer-amp-nchw-pt291-cu128-4090.csv": "rtx-4090",
    "benchmark-infer-amp-nhwc-pt240-cu124-rtx4090.csv": "rtx-4090",
    "benchmark-infer-amp-nchw-pt291-cu130-5090.csv": "rtx-5090",
    "benchmark-infer-amp-nchw-pt291-cu130-pro6000maxq.csv": "rtx-pro-6000-maxq",
    "benchmark-train-amp-nchw-pt112-cu113-rtx3090.csv": "rtx-3090",
    "benchmark-train-amp-nhwc-pt112-cu113-rtx3090.csv": "rtx-3090",
}
#: One model of so many, chosen by its name alone; another one of them is blind.
ONE_IN = 20

_NETWORKS = {
    "resnet50v1.5": ("resnet50", 224),
    "resnext101-32x4d": ("resnext101_32x4d", 224),
    "se-resnext101-32x4d": ("seresnext101_32x4d", 224),
    "efficientnet-b0": ("efficientnet_b0", 224),
    "efficientnet-b4": ("efficientnet_b4", 380),
}
# Batches of training, configs.yml: network -> (AMP on V100-16, V100-32, A100; FP32 or TF32 there)
_BATCHES = {
    "resnet50v1.5": ((256, 256, 256), (112, 112, 256)),
    "resnext101-32x4d": ((128, 128, 128), (64, 64, 128)),
    "se-resnext101-32x4d": ((112, 112, 128), (64, 64, 128)),
    "efficientnet-b0": ((128, 256, 256), (64, 128, 256)),
    "efficientnet-b4": ((32, 64, 128), (16, 32, 64)),
}
_DLE_CHIPS = {
    "V100 16GB": "v100-16-sxm", "DGX-1 16GB": "v100-16-sxm", "DGX-1 32GB": "v100-32-sxm",
    "V100 32GB": "v100-32-sxm", "A100": "a100-80-sxm", "T4": "t4",
}  # fmt: skip
_TRAINED = ("v100-16-sxm", "v100-32-sxm", "a100-80-sxm")

_NEUSIGHT_CHIPS = {
    "NVIDIA_A100-PCIE-40GB": "a100-40-pcie",
    "NVIDIA_A100_80GB_PCIe": "a100-80-pcie",
    "NVIDIA_H100_80GB_HBM3": "h100-sxm",
    "NVIDIA_L4": "l4",
    "Tesla_P100-PCIE-16GB": "p100-pcie",
    "Tesla_P4": "p4",
    "Tesla_T4": "t4",
    "Tesla_V100-PCIE-32GB": "v100-32-pcie",
    "AMD_Instinct_MI100": "mi100",
    "AMD_Instinct_MI210": "mi210",
    "AMD_Instinct_MI250": "mi250-die",
}

Found = Iterator[dict[str, object] | str]  # a row, or why there is none


def chosen(model: str, blind: bool) -> bool:
    """Whether the sample has a model of timm's."""
    return int(hashlib.sha256(model.encode()).hexdigest(), 16) % ONE_IN == int(blind)


def timm_rows(read, file: str, families: dict[str, str], blind: bool) -> Found:
    parts = file.removesuffix(".csv").split("-")
    _, way, dtype, layout, version, *_ = parts
    for row in csv.DictReader(io.StringIO(read(f"results/{file}"))):
        model = row["model"].split(".")[0]
        if not chosen(model, blind):
            yield f"not one of {ONE_IN}, by name"
        elif model not in families:
            yield "the model is not in timm 1.0.31"
        else:
            yield {
                "source": TIMM, "file": f"results/{file}", "chip": _TIMM_FILES[file],
                "family": families[model], "model": model, "size": row[f"{way}_img_size"],
                "batch": row[f"{way}_batch_size"], "dtype": dtype, "layout": layout,
                "mode": way, "torch": version[2:], "value": row[f"{way}_step_time"], "unit": "ms",
                "parameters": row["param_count"],
            }  # fmt: skip


def dle_rows(read, network: str, families: dict[str, str]) -> Found:
    folder = "efficientnet" if network.startswith("efficientnet") else network
    file = f"PyTorch/Classification/ConvNets/{folder}/README.md"
    model, size = _NETWORKS[network]
    base = {"source": DLE, "file": file, "family": families[model], "model": model, "size": size}
    chip = dtype = ""
    one: dict[str, float] = {}
    header: list[str] = []
    for line in read(file).splitlines():
        if line.startswith("#"):
            heading = line.strip("# ")
            if "performance:" in heading:
                plain = re.sub(r"\(\dx |\)", "", heading)
                named = [name for key, name in _DLE_CHIPS.items() if key in plain]
                chip = named[0] if named and not heading.startswith("QAT") else ""
            if "Inference Latency" in heading:
                dtype = "amp" if heading.startswith("Mixed") else heading.split()[0].lower()
            header = []
            continue
        if not line.startswith("|") or not chip or ":--" in line:
            continue
        cells = [cell.strip().strip("*").strip() for cell in line.strip().strip("|").split("|")]
        if not header:
            header = cells
            continue
        row = dict(zip(header, cells, strict=False))
        if row.get("Model", network) != network:
            if row["Model"] not in _NETWORKS and network == "efficientnet-b0":
                yield "the network is not in timm"
            continue
        if "GPUs" in row:
            index = _TRAINED.index(chip)
            for precision, key in enumerate(("Throughput - mixed precision", "other")):
                name = key if key in row else next(
                    k for k in row if k.split()[-1] in ("TF32", "FP32"))  # fmt: skip
                rate = float(row[name].split()[0])
                kind = "amp" if precision == 0 else name.split()[-1].lower()
                if row["GPUs"] == "1":
                    one[kind] = rate
                    continue
                yield "several chips"
                if rate > 1.1 * 8 * one[kind]:
                    yield "one chip and eight contradict each other"
                    continue
                batch = _BATCHES[network][precision][index]
                yield base | {
                    "chip": chip, "batch": batch, "dtype": kind, "mode": "train",
                    "layout": "nhwc" if kind == "amp" else "nchw", "torch": "1.8",
                    "value": f"{1e3 * batch / one[kind]:.4g}", "unit": "ms",
                }  # fmt: skip
        elif "Batch Size" in row:
            mean, tail = (float(row[f"Latency {key}"].split()[0]) for key in ("Avg", "95%"))
            if mean > 1.1 * tail:
                yield "the mean is beyond the 95th percentile: single batches stalled"
                continue
            yield base | {
                "chip": chip, "batch": row["Batch Size"], "dtype": dtype, "mode": "infer",
                "layout": "nhwc" if dtype == "amp" else "nchw", "torch": "1.9",
                "value": mean, "unit": "ms",
            }  # fmt: skip


def neusight_rows(read, file: str) -> Found:
    name, mode, length, batch, *rest = Path(file).stem.split("-")
    chip = _NEUSIGHT_CHIPS.get(Path(file).parent.name)
    if rest or chip is None:
        yield "several chips" if "fusion" not in rest else "compiled"
    elif name.startswith("switch"):
        yield "a model of experts whose routing depends on data"
    else:
        yield {
            "source": NEUSIGHT, "file": file, "chip": chip, "family": name.split("_")[0],
            "model": name, "size": length, "batch": batch,
            "dtype": "fp32", "layout": "", "mode": {"inf": "forward", "train": "gradients"}[mode],
            "torch": "2.1", "value": f"{json.loads(read(file))['e2e_latency']:.5g}", "unit": "ms",
        }  # fmt: skip


def main(clones: Path, blind: bool) -> None:
    from claims.evidence.step_times.timm_models import families as of_timm

    families = of_timm()

    def git(repository: str, *words: str) -> str:
        folder = clones / repository.replace("/", "+") / "repo"
        done = subprocess.run(["git", "-C", folder, *words], capture_output=True, check=True)
        return done.stdout.decode()

    def reader(repository: str):
        return lambda path: git(repository, "show", f"{SOURCES[repository]}:{path}")

    found = [(TIMM, timm_rows(reader(TIMM), file, families, blind)) for file in _TIMM_FILES]
    networks = () if blind else _NETWORKS
    found += [(DLE, dle_rows(reader(DLE), network, families)) for network in networks]
    labels = git(
        NEUSIGHT, "ls-tree", "-r", "--name-only", SOURCES[NEUSIGHT], "scripts/asplos/label"
    )
    found += [
        (NEUSIGHT, neusight_rows(reader(NEUSIGHT), file))
        for file in labels.split() if file.endswith(".json") and not blind
    ]  # fmt: skip
    rows, dropped = [], Counter()
    for source, results in found:
        for result in results:
            if isinstance(result, str):
                dropped[source, result] += 1
            else:
                rows.append(result)
    folder = BLIND if blind else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "rows.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    with (folder / "dropped.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("source", "reason", "rows"))
        writer.writerows((*key, count) for key, count in sorted(dropped.items()))
    print(len(rows), "rows;", sum(dropped.values()), "dropped")


if __name__ == "__main__":
    main(Path(sys.argv[1]), "--blind" in sys.argv)
