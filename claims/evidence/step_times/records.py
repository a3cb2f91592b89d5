# SPDX-License-Identifier: BSD-3-Clause
"""Commands of the published programs: claims/evidence/step_times/records.npz.xz, from dry runs.

    python -m claims.evidence.step_times.records           # of rows.csv here
    python -m claims.evidence.step_times.records --blind   # of build/published/rows.csv

It needs timm 1.0.31 and transformers; torchvision may be absent. A record keeps each different
command of a program once, with the order in which they come, so that fits read no program again.
"""

import contextlib
import csv
import io
import lzma
import math
import sys
import time

import numpy as np
import torch
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from claims.evidence.step_times import rows as published
from claims.evidence.step_times.timm_models import timm
from torch_npusim.sim import dry_run, timeline

# Operators choose kernels by it. The memory is more than any program needs: the figures are times.
SPEC, ROOM = "a100-80-sxm", "2TiB"

#: NumPy's archive of the programs of a folder, compressed.
RECORDS = "records.npz.xz"

#: Columns that make a program: rows that agree in them share a record.
PROGRAM = ("source", "model", "size", "batch", "dtype", "layout", "mode", "torch")

#: Columns of a command. A product is `batch` of m x k by k x n; a convolution's m are positions.
COLUMNS = (
    "name", "kind", "work", "precision", "flops", "bytes", "operand_bytes",
    "batch", "m", "n", "k", "taps", "stride",
)  # fmt: skip


@contextlib.contextmanager
def attention_of(version):
    """Attention as torch of timm's tables had it: "112" is 1.12, "240" is 2.4.

    Up to 1.13 timm writes it out. Up to 2.4 attention in the form of products stays in half
    precision, where later ones sum in float32.
    """
    from timm.layers import set_fused_attn

    before = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    set_fused_attn(int(version) >= 200)
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(int(version) < 250)
    try:
        yield
    finally:
        set_fused_attn(True)
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(before)


@contextlib.contextmanager
def norms_of(version):
    """Norms of timm's tables: those after torch 1.12 have them in half precision under autocast.

    benchmark.py has `--fast-norm` since 25 August 2022; the tables of torch 1.12 are of July. No
    table says whether it was given. The rows of the fit do.
    """
    from timm.layers import is_fast_norm, set_fast_norm

    before = is_fast_norm()
    set_fast_norm(int(version) > 112)
    try:
        yield
    finally:
        set_fast_norm(before)


class Shapes(TorchDispatchMode):
    """Sizes of products and convolutions, in order."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, kinds, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if found := sizes(str(function), args, result):
            self.calls.append(found)
        return result


def sizes(name, args, result):
    """(aten name, batch, m, n, k, taps, stride) of a product."""
    short = name.removeprefix("aten.").split(".")[0]
    if short in ("mm", "addmm"):
        a, b = args[-2:]
        return short, 1, a.shape[0], b.shape[1], a.shape[1], 1, 1
    if short in ("bmm", "baddbmm"):
        a, b = args[-2:]
        return short, a.shape[0], a.shape[1], b.shape[2], a.shape[2], 1, 1
    if short.startswith("convolution"):
        backward = "backward" in short
        weight, out = (args[2], args[0]) if backward else (args[1], result)
        stride, groups = (args[4], args[9]) if backward else (args[3], args[8])
        taps = math.prod(weight.shape[2:])
        return (
            short, groups, out.numel() // out.shape[1], weight.shape[0] // groups,
            weight.shape[1] * taps, taps, max(stride),
        )  # fmt: skip
    if "scaled_dot_product" in short:
        q, k = args[1:3] if "backward" in short else args[:2]
        return short, math.prod(q.shape[:-2]), q.shape[-2], k.shape[-2], q.shape[-1], 1, 1
    return None


@contextlib.contextmanager
def recorded(into):
    """A timeline that begins with idle devices, and the sizes."""
    torch.npusim.synchronize()
    shapes = Shapes()
    with timeline.record() as made, shapes:
        yield
    into += [made, shapes.calls]


def agrees(model, row):
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    return abs(millions - float(row["parameters"])) < 0.006 + 0.002 * millions


def network(row):
    """One batch of a network of timm's: evaluation, or a step with SGD."""
    layout = torch.channels_last if row["layout"] == "nhwc" else torch.contiguous_format
    train, size, batch = row["mode"] == "train", int(row["size"]), int(row["batch"])
    create = timm().create_model
    with torch.device("npusim"):
        try:
            model = create(row["model"])
            least = model.default_cfg.get("input_size", (3, size, size))[-1]
            if least != size and hasattr(model, "patch_embed"):
                model = create(row["model"], img_size=size)
        except TypeError:
            model = create(row["model"])
    if row["parameters"] and not agrees(model, row):
        # The table's models were fused into their inference form where they have one.
        from timm.utils import reparameterize_model

        model = reparameterize_model(model)
        if not agrees(model, row):
            raise ValueError("the model of the table has another number of parameters")
    model = model.to(memory_format=layout).train(train)
    images = torch.empty(batch, 3, size, size, device="npusim").to(memory_format=layout)
    labels = torch.empty(batch, dtype=torch.int64, device="npusim")
    optimizer = torch.optim.SGD(
        model.parameters(), 1e-4, momentum=0.9, nesterov=True, weight_decay=1e-4, foreach=True
    )
    cast = torch.autocast("npusim", torch.float16, enabled=row["dtype"] == "amp")
    of_nvidia = row["source"] == published.DLE

    def step():
        if train:
            optimizer.zero_grad()
            with cast:
                F.cross_entropy(model(images), labels).backward()
            optimizer.step()
            return
        with torch.no_grad(), cast:
            out = model(images)
        if of_nvidia:  # the loss and two accuracies, asked for
            loss = F.cross_entropy(out, labels)
            found = out.topk(5, 1)[1].t().eq(labels.view(1, -1))
            [found[:k].float().sum().item() for k in (1, 5)]
            loss.item()

    return step


_GPT2 = {
    "gpt2_large": {"n_embd": 1280, "n_head": 20, "n_layer": 36, "n_positions": 1024},
    "gpt3_xl": {"n_embd": 3072, "n_head": 24, "n_layer": 24, "n_positions": 2048},
    "gpt3_27": {"n_embd": 2560, "n_head": 32, "n_layer": 32, "n_positions": 2048},
}


def language_model(row):
    """A pass, or two, of a model of transformers' with attention written out, float32."""
    import transformers as t

    train = row["mode"] == "gradients"
    if row["model"] in _GPT2:
        config = t.GPT2Config(**_GPT2[row["model"]], attn_implementation="eager")
        make = t.GPT2LMHeadModel
    elif row["model"] == "opt_13":
        config = t.OPTConfig(
            hidden_size=2048, ffn_dim=8192, num_attention_heads=32, num_hidden_layers=24,
            word_embed_proj_dim=2048, attn_implementation="eager",
        )  # fmt: skip
        make = t.OPTForCausalLM
    else:
        config = t.BertConfig(
            hidden_size=1024, intermediate_size=4096, num_attention_heads=16, num_hidden_layers=24,
            attn_implementation="eager",
        )  # fmt: skip
        make = t.BertForPreTraining if train else t.BertForSequenceClassification
    with torch.device("npusim"):
        model = make(config).train(train)
    tokens = torch.empty(int(row["batch"]), int(row["size"]), dtype=torch.int64, device="npusim")

    def step():
        if not train:
            with torch.no_grad():
                model(tokens)
            return
        model.zero_grad()
        out = model(tokens)
        logits = out["prediction_logits"] if "prediction_logits" in out else out["logits"]
        F.cross_entropy(logits.view(-1, logits.size(-1)), tokens.view(-1)).backward()

    return step


def record(row):
    """Returns (unique commands, their order, calls of modules) of a program."""
    tf32 = row["dtype"] == "tf32" or row["source"] == published.TIMM
    timm()
    with contextlib.ExitStack() as stack:
        stack.enter_context(dry_run(spec=SPEC, memory=ROOM, temporaries="cuda"))
        stack.enter_context(precision(tf32))
        if row["source"] == published.TIMM:
            stack.enter_context(attention_of(row["torch"]))
            stack.enter_context(norms_of(row["torch"]))
        step = (language_model if row["source"] == published.NEUSIGHT else network)(row)
        if row["mode"] in ("train", "gradients"):  # the first step makes an optimizer's state
            step()
        return commands_of(step)


def commands_of(step):
    """Returns (unique commands, their order, calls of modules) of a step."""
    made, modules = [], []
    hook = register_module_forward_pre_hook(lambda module, inputs: modules.append(module))
    try:
        with recorded(made):
            step()
    finally:
        hook.remove()
    times, calls = made
    rest = iter(calls)
    pending = next(rest, None)
    unique, order = {}, []
    for command in times.commands():
        shape = (0,) * 6
        short = command.name.removeprefix("aten::").split(".")[0]
        if command.work in timeline.PRODUCTS and pending is not None:
            if pending[0].split("_overr")[0].split("_for_")[0] not in short and (
                "attention" not in short or "attention" not in pending[0]
            ):
                raise RuntimeError(f"{command.name} is not {pending}")
            shape, pending = pending[1:], next(rest, None)
        key = (
            command.name, timeline.COMMANDS.index(command.kind), command.work, command.precision,
            command.flops, command.bytes, command.operand_bytes, *shape,
        )  # fmt: skip
        order.append(unique.setdefault(key, len(unique)))
    if pending is not None:
        raise RuntimeError(f"no command of {pending}")
    return list(unique), order, len(modules)


@contextlib.contextmanager
def precision(tf32):
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def programs(folder):
    """Key -> a row of it."""
    with (folder / "rows.csv").open() as file:
        return {tuple(row[key] for key in PROGRAM): row for row in csv.DictReader(file)}


def main(folder):
    names, commands, orders, made, failed = {}, [], [], [], {}
    for key, row in programs(folder).items():
        begin = time.time()
        try:
            unique, order, modules = record(row)
        except Exception as error:  # whatever the program raises is a reason
            failed[key] = f"{type(error).__name__}: {error}".split("\n")[0][:150]
            print("-", *key, failed[key], flush=True)
            continue
        first = len(commands)
        commands += [(names.setdefault(c[0], len(names)), *c[1:]) for c in unique]
        orders.append(np.array(order, np.uint16))
        made.append((*key, first, len(unique), len(order), modules))
        print(len(made), *key, len(order), f"{time.time() - begin:.1f} s", flush=True)
    kept = io.BytesIO()
    np.savez(
        kept,
        names=np.array(list(names)),
        commands=np.array(commands, np.float64),
        orders=np.concatenate(orders),
        programs=np.array(made),
        failed=np.array([(*key, why) for key, why in failed.items()]),
    )
    (folder / RECORDS).write_bytes(lzma.compress(kept.getvalue(), preset=9))


if __name__ == "__main__":
    main(published.BLIND if "--blind" in sys.argv else published.FOLDER)
