# SPDX-License-Identifier: BSD-3-Clause
"""Published times that no data file of the fit names, as docs/reference/validation.md has them.

    python tools/pages/blind_times.py CLONES [LIST]   # runs the programs dry and compares

The lists were committed before their first prediction. published/blind_times.csv has every eager
row of the named files, on a chip of specs/devices; fresh_times.csv, made later, has the first and
the last batch of three of AITemplate's tables, a small and a middle model of transformer-deploy's,
and the steps of one length of a language model. unseen_times.csv was committed before its first
prediction: BERT and ResNet-50 in half precision on each single GPU of Lambda's table with a
specification, and both tables of BERT in the documentation of transformers. CLONES is a folder with
git directories of the repositories, named owner+name/repo. Language models are read there, as their
authors have them; they need einops, einx and jaxtyping, the networks timm, encoders transformers.
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
from pages.published_programs import attention_of, precision, timm
from pages.published_rows import FOLDER
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_pre_hook

from torch_npusim.sim import clock, dry_run, specs, timeline

LISTS = ("blind_times.csv", "fresh_times.csv", "unseen_times.csv")
LAMBDA, TRANSFORMERS = "lambdal/deeplearning-benchmark", "huggingface/transformers"
AITEMPLATE, DEPLOY = "facebookincubator/AITemplate", "ELS-RD/transformer-deploy"
LUKE, LUKES_MODEL = "luke396/assignment2-systems", "luke396/assignment1-basics"
#: Repository -> the commit that was read.
SOURCES = {
    "yyin-dev/cs336-a2": "bc6cc1b01d16d203c32ce06eed72dacaa138d875",
    "sandeepkumar-skb/pytorch_experiments": "84f7ac840be95ead77ea56c701e20aa529b049a6",
    "Simantini1709/GPU-Inference-Optimization": "10bbb5ede004bb8b17358f4774966246a4b94701",
    AITEMPLATE: "c8aad3774cddca8934f06281755aff5d7e5def40",
    DEPLOY: "6b88e24ade6ce199e825adc0477b28a07f51f17d",
    LUKE: "24c85d16a1ee12b18fd9c46e9853fceaed6f7595",
    LUKES_MODEL: "770a6a32d29e1ff2aef3b188d5148afb80000786",
}
#: Width, inner width, layers and heads.
SIZES = {
    "lm-small": (768, 3072, 12, 12),
    "lm-medium": (1024, 4096, 24, 16),
    "lm-large": (1280, 5120, 36, 20),
    "lm-xl": (1600, 6400, 48, 25),
    "lm-2.7B": (2560, 10240, 32, 32),
}
#: The dtype of autocast, by a row's precision; "half" is a model of float16.
CASTS = {"bf16": torch.bfloat16, "amp": torch.float16}


def unpacked(clones, source, package):
    """Makes a package of a git directory importable."""
    folder = Path(clones) / source.replace("/", "+") / "repo"
    words = ["git", "-C", folder, "archive", SOURCES[source], package]
    made = subprocess.run(words, capture_output=True, check=True)
    into = tempfile.mkdtemp()
    with tarfile.open(fileobj=BytesIO(made.stdout)) as archive:
        archive.extractall(into, filter="data")
    (Path(into) / package / "__init__.py").write_text("")  # asks for its installation
    sys.path.insert(0, into)


@functools.cache
def course(clones):
    """(Model of a length, width, inner width, layers and heads; its loss; optimizer)."""
    unpacked(clones, "yyin-dev/cs336-a2", "cs336_systems")
    from cs336_systems import model, nn_utils, optimizer

    def make(length, width, inner, layers, heads):
        return model.BasicsTransformerLM(
            vocab_size=10000, context_length=length, d_model=width, num_layers=layers,
            num_heads=heads, d_ff=inner, rope_theta=10000,
        )  # fmt: skip

    return make, nn_utils.cross_entropy, optimizer.AdamW


@functools.cache
def lukes(clones):
    """The same of another solution, which has no positions."""
    unpacked(clones, LUKES_MODEL, "cs336_basics")
    from cs336_basics import blocks, training_utility

    def make(length, width, inner, layers, heads):
        return blocks.TransformerLM(
            vocab_size=10000, context_length=length, d_model=width, n_layers=layers,
            num_heads=heads, d_ff=inner,
        )  # fmt: skip

    def loss(logits, tokens):
        return training_utility.cross_entropy(logits.view(-1, 10000), tokens.view(-1))

    return make, loss, training_utility.AdamW


def language_model(row, clones):
    make, loss_of, optimizer_of = (lukes if row["source"] == LUKE else course)(clones)
    width, inner, layers, heads = SIZES[row["model"]]
    length, batch = int(row["size"]), int(row["batch"])
    with torch.device("npusim"):
        model = make(length, width, inner, layers, heads)
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


#: Width, layers, heads, class of transformers.
ENCODERS = {
    "bert-base": (768, 12, 12, "Bert"),
    "bert-large": (1024, 24, 16, "Bert"),
    "minilm-l6-h384": (384, 6, 12, "Bert"),
    "roberta-base": (768, 12, 12, "Roberta"),
}


def encoder(row):
    """AITemplate times the layers alone, transformer-deploy a classifier: half, and autocast."""
    import transformers

    width, layers, heads, name = ENCODERS[row["model"]]
    batch, length, half = int(row["batch"]), int(row["size"]), row["dtype"] == "half"
    config = getattr(transformers, f"{name}Config")(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=4 * width, attn_implementation="eager", max_position_embeddings=514,
    )  # fmt: skip
    with torch.device("npusim"):
        model = getattr(transformers, f"{name}ForSequenceClassification")(config).eval()
        tokens = torch.ones(batch, length, dtype=torch.int64)
        states = torch.zeros(batch, length, width, dtype=torch.float16)
    model = model.half() if half else model
    alone = row["source"] == AITEMPLATE
    cast = torch.autocast("npusim", torch.float16, enabled=half and not alone)

    def step():
        with torch.inference_mode(), cast:
            if alone:
                model.bert.encoder(states)
            else:
                model(input_ids=tokens, attention_mask=tokens)

    return step


def tuned(row):
    """BERT of Lambda's table (DeepLearningExamples, SQuAD), or of transformers' documentation.

    The first trains under autocast, with clipped gradients; the second is a model of words, half.
    """
    import transformers

    width, layers, heads, _ = ENCODERS[row["model"]]
    config = transformers.BertConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=4 * width, attn_implementation=row["layout"] or "eager", is_decoder=False,
    )  # fmt: skip
    squad = row["source"] == LAMBDA
    name = "QuestionAnswering" if squad else "MaskedLM"
    with torch.device("npusim"):
        model = getattr(transformers, f"BertFor{name}")(config).train(row["mode"] != "infer")
        tokens = torch.ones(int(row["batch"]), int(row["size"]), dtype=torch.int64)
        ends = torch.zeros(int(row["batch"]), dtype=torch.int64)
    if not squad:
        model = model.half()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True) if squad else None
    mask = {} if row["layout"] == "sdpa" else {"attention_mask": tokens}

    def step():
        if row["mode"] == "infer":
            with torch.inference_mode():
                model(input_ids=tokens, **mask)
            return
        model.zero_grad()
        with torch.autocast("npusim", torch.float16, enabled=squad):
            ask = {"start_positions": ends, "end_positions": ends} if squad else {}
            out = model(input_ids=tokens, **mask, **ask)
        if not squad:
            out.logits.sum().backward()
            return
        out.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def vision(row):
    """AITemplate's networks."""
    size, batch, library = int(row["size"]), int(row["batch"]), timm()
    with torch.device("npusim"), attention_of("112"):
        if row["model"] == "resnet50":
            model = library.create_model("resnet50")
        else:
            make = library.models.vision_transformer.VisionTransformer
            model = make(img_size=size, class_token=False, global_pool="avg")
        images = torch.zeros(batch, 3, size, size, dtype=torch.float16)
    model = model.half().eval()

    def step():
        with torch.inference_mode(), attention_of("112"):
            model(images)

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


def modelled(row, clones):
    """(Milliseconds of a step by the host of no name, share in which the device works)."""
    host = specs.load_host("eager")
    # cuDNN may use TF32 by default, cuBLAS may not.
    with contextlib.ExitStack() as stack:
        stack.enter_context(
            dry_run(
                spec=row["chip"], memory="2TiB", temporaries="cuda", dispatch_us=host.dispatch_us
            )
        )
        # Products used TF32 by default before torch 1.12.
        stack.enter_context(precision(row["source"] == DEPLOY))
        torch.backends.cudnn.allow_tf32 = True
        if row["model"] in SIZES:
            step = language_model(row, clones)
        elif row["source"] in (LAMBDA, TRANSFORMERS) and row["model"] in ENCODERS:
            step = tuned(row)
        elif row["model"] in ENCODERS:
            step = encoder(row)
        else:
            step = vision(row) if row["source"] == AITEMPLATE else network(row)
        if row["mode"] != "forward":  # the first step makes an optimizer's state
            step()
        torch.npusim.synchronize()
        with modules_cost(host.module_us), timeline.record() as made:
            step()
            torch.npusim.synchronize()
        busy = max(made.replay().busy_ns.values()) / made.span_ns
        return made.span_ns / 1e6, busy


def main(clones, lists):
    for name in lists or LISTS:
        with (FOLDER / name).open() as file:
            compare(list(csv.DictReader(file)), clones)


def compare(rows, clones):
    kept = []
    for row in rows:
        (made, busy), published = modelled(row, clones), float(row["milliseconds"])
        low, high = specs.interval(row["chip"], busy)
        idles, within = specs.device_idles(busy), low <= published / made <= high
        groups = ("all", "the device works", "the device idles")
        kept.append(
            (
                {"all", row["source"], groups[1 + idles]},
                made / published - 1, within, high / low,
            )
        )  # fmt: skip
        words = [row[key] for key in ("chip", "model", "size", "batch", "dtype", "layout", "mode")]
        told = f"{published:.1f} {made:.1f} {kept[-1][1]:+.0%} busy {busy:.2f} {within}"
        print(*words, told, flush=True)
    head = "figures | number | in the interval | median error | median, signed | high end by low"
    print(f"| {head} |\n|---|---|---|---|---|---|")
    for group in (*groups, *dict.fromkeys(row["source"] for row in rows)):
        of = [row for row in kept if group in row[0]]
        errors, width = np.array([row[1] for row in of]), np.median([row[3] for row in of])
        print(
            f"| {group} | {len(of)} | {sum(row[2] for row in of)} | {np.median(abs(errors)):.0%} "
            f"| {np.median(errors):+.0%} | {width:.2f} |"
        )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
