# SPDX-License-Identifier: BSD-3-Clause
"""Published times that no data file of the fit names, as docs/reference/validation.md has them.

    python tools/pages/blind_times.py CLONES   # runs the programs dry and compares

published/blind_times.csv was committed before the first prediction: every eager row of the named
files, on a chip of specs/devices. CLONES is a folder with git directories of the repositories,
named owner+name/repo. The language model is read there, as its author has it; it needs einops,
einx and jaxtyping, the networks timm.
"""

import contextlib
import csv
import functools
import subprocess
import sys
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from pages.published_programs import precision, timm
from pages.published_rows import FOLDER
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_pre_hook

from torch_npusim.sim import clock, dry_run, specs, timeline

ROWS = FOLDER / "blind_times.csv"
#: Repository -> the commit that was read.
SOURCES = {
    "yyin-dev/cs336-a2": "bc6cc1b01d16d203c32ce06eed72dacaa138d875",
    "sandeepkumar-skb/pytorch_experiments": "84f7ac840be95ead77ea56c701e20aa529b049a6",
    "Simantini1709/GPU-Inference-Optimization": "10bbb5ede004bb8b17358f4774966246a4b94701",
}
#: Width, inner width, layers and heads.
SIZES = {
    "lm-small": (768, 3072, 12, 12),
    "lm-medium": (1024, 4096, 24, 16),
    "lm-large": (1280, 5120, 36, 20),
    "lm-xl": (1600, 6400, 48, 25),
    "lm-2.7B": (2560, 10240, 32, 32),
}
#: What autocast casts to; "half" is a model of float16.
CASTS = {"bf16": torch.bfloat16, "amp": torch.float16}


@functools.cache
def course(clones):
    """The course's package, from its git directory."""
    source = "yyin-dev/cs336-a2"
    words = ["archive", SOURCES[source], "cs336_systems"]
    folder = Path(clones) / source.replace("/", "+") / "repo"
    made = subprocess.run(["git", "-C", folder, *words], capture_output=True, check=True)
    into = tempfile.mkdtemp()
    with tarfile.open(fileobj=BytesIO(made.stdout)) as archive:
        archive.extractall(into, filter="data")
    (Path(into) / "cs336_systems" / "__init__.py").write_text("")  # asks for its installation
    sys.path.insert(0, into)
    from cs336_systems import model, nn_utils, optimizer

    return model.BasicsTransformerLM, nn_utils.cross_entropy, optimizer.AdamW


def language_model(row, clones):
    make, loss_of, optimizer_of = course(clones)
    width, inner, layers, heads = SIZES[row["model"]]
    length, batch = int(row["size"]), int(row["batch"])
    with torch.device("npusim"):
        model = make(
            vocab_size=10000, context_length=length, d_model=width, num_layers=layers,
            num_heads=heads, d_ff=inner, rope_theta=10000,
        )  # fmt: skip
        tokens = torch.zeros(batch, length, dtype=torch.int64)
    optimizer = optimizer_of(model.parameters())
    cast = torch.autocast("npusim", CASTS.get(row["dtype"]), enabled=row["dtype"] in CASTS)

    def step():
        with cast:
            if row["mode"] == "forward":
                model(tokens)
                return
            optimizer.zero_grad()
            loss_of(model(tokens), tokens).backward()
            if row["mode"] == "train":
                optimizer.step()

    return step


def network(row):
    half = row["dtype"] == "half"
    layout = torch.channels_last if row["layout"] == "nhwc" else torch.contiguous_format
    train = row["mode"] == "train"
    with torch.device("npusim"):
        model = timm().create_model(row["model"]).to(memory_format=layout).train(train)
        images = torch.zeros(int(row["batch"]), 3, int(row["size"]), int(row["size"]))
        labels = torch.zeros(int(row["batch"]), dtype=torch.int64)
    images = images.to(memory_format=layout)
    if half:
        model, images = model.half(), images.half()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9, weight_decay=1e-4)
    cast = torch.autocast("npusim", CASTS.get(row["dtype"]), enabled=row["dtype"] in CASTS)

    def step():
        if not train:
            with torch.no_grad(), cast:
                model(images)
            return
        with cast:
            loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


@contextlib.contextmanager
def modules_cost(cost_us):
    hook = register_module_forward_pre_hook(lambda *_: clock.advance(round(1e3 * cost_us)))
    try:
        yield
    finally:
        hook.remove()


def milliseconds(row, clones):
    """The modelled time of a step, by the host of no name."""
    host = specs.load_host("eager")
    # cuDNN may use TF32 by default, cuBLAS may not.
    with contextlib.ExitStack() as stack:
        stack.enter_context(
            dry_run(
                spec=row["chip"], memory="2TiB", temporaries="cuda", dispatch_us=host.dispatch_us
            )
        )
        stack.enter_context(precision(False))
        torch.backends.cudnn.allow_tf32 = True
        language = row["model"] in SIZES
        step = language_model(row, clones) if language else network(row)
        if row["mode"] != "forward":  # the first step makes an optimizer's state
            step()
        torch.npusim.synchronize()
        with modules_cost(host.module_us), timeline.record() as made:
            step()
            torch.npusim.synchronize()
        return made.span_ns / 1e6


def main(clones):
    with ROWS.open() as file:
        rows = list(csv.DictReader(file))
    kept = []
    for row in rows:
        made, published = milliseconds(row, clones), float(row["milliseconds"])
        low, high = specs.interval(row["chip"])
        kept.append(
            (row["source"], made / published - 1, low <= published / made <= high, high / low)
        )
        words = [row[key] for key in ("chip", "model", "size", "batch", "dtype", "layout", "mode")]
        print(*words, f"{published:.1f} {made:.1f} {kept[-1][1]:+.0%} {kept[-1][2]}", flush=True)
    head = "source | figures | in the interval | median error | median, signed | high end by low"
    print(f"| {head} |\n|---|---|---|---|---|---|")
    for source in ("all", *SOURCES):
        of = [row for row in kept if source in ("all", row[0])]
        errors, width = np.array([row[1] for row in of]), np.median([row[3] for row in of])
        print(
            f"| {source} | {len(of)} | {sum(row[2] for row in of)} | {np.median(abs(errors)):.0%} "
            f"| {np.median(errors):+.0%} | {width:.2f} |"
        )


if __name__ == "__main__":
    main(sys.argv[1])
