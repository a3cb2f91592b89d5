# SPDX-License-Identifier: BSD-3-Clause
"""Every model of timm and transformers that builds on `meta`, built dry; writes a page.

    pip install --no-deps --target build/models timm==1.0.31 torchvision==0.28.0
    PYTHONPATH=build/models python tools/pages/dry_models.py [--page] [--only resnet50,LlamaConfig]

Each model is built in a process of its own, on `meta` and then on a dry device, by the defaults of
its package. Parameters and buffers must have the same names, shapes and dtypes. A model of timm
also gets a batch of two images on both. Answers are kept in build/dry_models.jsonl: a run that was
interrupted goes on.
"""

import argparse
import importlib
import importlib.metadata
import io
import json
import multiprocessing
import os
import random
import re
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ANSWERS = ROOT / "build" / "dry_models.jsonl"
PAGE = ROOT / "docs" / "reference" / "dry_models.md"
MEMORY = "16TiB"  # for parameters in float32; a device has as many addresses
SECONDS = 600  # of processor time for a model


def timm_names() -> list[str]:
    import timm

    return list(timm.list_models())


def transformers_names() -> list[str]:
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    configs = importlib.import_module("transformers.models.auto.configuration_auto")
    return sorted({configs.CONFIG_MAPPING_NAMES[kind] for kind in MODEL_MAPPING_NAMES})


def timm_model(name: str, device: str) -> Any:
    import timm
    import torch

    with torch.device(device):
        return timm.create_model(name).eval()


def transformers_model(name: str, device: str) -> Any:
    import torch
    import transformers

    config = getattr(transformers, name)()
    with torch.device(device):
        return transformers.AutoModel.from_config(config).eval()


PACKAGES: dict[str, tuple[Callable[[], list[str]], Callable[[str, str], Any]]] = {
    "timm": (timm_names, timm_model),
    "transformers": (transformers_names, transformers_model),
}


def tensors_of(model: Any) -> dict[str, str]:
    """Returns shape and dtype of each parameter and buffer, by name."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: f"{tuple(value.shape)} {value.dtype}" for name, value in named}


def on_host(model: Any) -> set[str]:
    """Returns parameters that a model makes on the host whatever the default device is."""
    return {name for name, value in model.named_parameters() if value.device.type == "cpu"}


def shapes_of(result: Any) -> list[tuple[int, ...]]:
    import torch
    from torch.utils import _pytree

    leaves = _pytree.tree_leaves(result)
    return [tuple(leaf.shape) for leaf in leaves if isinstance(leaf, torch.Tensor)]


def results_on(model: Any, device: str) -> list[tuple[int, ...]]:
    import torch

    size = model.default_cfg.get("input_size", (3, 224, 224))
    with torch.no_grad():
        return shapes_of(model(torch.empty(2, *size, device=device)))


def short(error: BaseException) -> str:
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first}"[:200]


def answer(package: str, name: str) -> dict[str, Any]:
    """Returns what a model did: "meta", "dry", "ran": an error, or "" for a success."""
    import torch

    from torch_npusim.sim import dry_run

    build = PACKAGES[package][1]
    found: dict[str, Any] = {"package": package, "name": name, "meta": "", "dry": "", "ran": None}
    torch.set_num_threads(1)
    try:
        on_meta = build(name, "meta")
    except Exception as error:
        return found | {"meta": short(error)}
    wanted, shapes = tensors_of(on_meta), None
    if package == "timm":
        with suppress(Exception):  # then there is nothing to compare with
            shapes = results_on(on_meta, "meta")
    with dry_run(temporaries="cuda") as run:
        try:
            model = build(name, "npusim")
            have = tensors_of(model)
            different = [key for key in wanted | have if wanted.get(key) != have.get(key)]
            if different:
                key = different[0]
                found["dry"] = f"{key}: {wanted.get(key)} on meta, {have.get(key)} dry"
            elif left := on_host(model) - on_host(on_meta):
                found["dry"] = f"not on the device: {', '.join(sorted(left)[:3])}"
        except Exception as error:
            return found | {"dry": short(error)}
        found["bytes"] = run.peak_allocated()
        if shapes is not None:
            try:
                dry = results_on(model, "npusim")
                found["ran"] = "" if dry == shapes else f"{shapes} on meta, {dry} dry"
            except Exception as error:
                found["ran"] = short(error)
    return found


def _in_process(package: str, name: str, sender: Connection) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    warnings.simplefilter("ignore")
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        found = answer(package, name)
    sender.send(found | {"seconds": round(time.process_time(), 1)})


def asked(package: str, name: str) -> dict[str, Any]:
    """Returns the answer of a fork: packages are imported, and there is no device yet."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(
        target=_in_process, args=(package, name, sender)
    )
    process.start()
    sender.close()
    try:
        found: dict[str, Any] = receiver.recv()
    except EOFError:
        process.join()
        code = process.exitcode or 0
        ended = f"it ended by {signal.Signals(-code).name}" if code < 0 else f"status {code}"
        found = {"package": package, "name": name, "meta": "", "dry": ended, "ran": None}
    process.join()
    return found


def ordered(names: list[str], package: str) -> list[str]:
    """Returns the names in an order of which the first part is a fair sample."""
    shuffled = list(names)
    random.Random(package).shuffle(shuffled)
    return shuffled


def _cell(text: str) -> str:
    return re.sub(r"0x[0-9a-f]+", "0x...", text).replace("|", "\\|")


def page_of(rows: list[dict[str, Any]], totals: dict[str, int]) -> str:
    """Returns the page."""
    lines = [
        "# Models of timm and transformers, built dry",
        "",
        "```text",
        "pip install --no-deps --target build/models timm==1.0.31 torchvision==0.28.0",
        "PYTHONPATH=build/models python tools/pages/dry_models.py --page",
        "```",
        "",
        "The command builds each model by its package's defaults, on `meta` and then in a",
        "[dry run](../use/dry_runs.md), in a process of its own. Parameters and buffers must have",
        "the same names, shapes and dtypes. Models of timm then run on a batch of two images, and",
        "the shapes of their results must be those of `meta`.",
        "",
        "| package | models | asked | build on `meta` | build dry | ran on `meta` | ran dry |",
        "|---|---|---|---|---|---|---|",
    ]
    for package, total in totals.items():
        mine = [row for row in rows if row["package"] == package]
        on_meta = [row for row in mine if not row["meta"]]
        ran = [row for row in on_meta if row["ran"] is not None]
        version = importlib.metadata.version(package)
        lines.append(
            f"| {package} {version} | {total:,} | {len(mine):,} | {len(on_meta):,} "
            f"| {sum(not row['dry'] for row in on_meta):,} | {len(ran) or '-'} "
            f"| {sum(not row['ran'] for row in ran) if ran else '-'} |"
        )
    failed = [row for row in rows if not row["meta"] and (row["dry"] or row["ran"])]
    lines += ["", "## What does not build, or run, dry", ""]
    if failed:
        lines += ["| model | |", "|---|---|"]
        for row in sorted(failed, key=lambda row: (row["package"], row["name"])):
            lines.append(
                f"| {row['package']} `{row['name']}` | {_cell(row['dry'] or row['ran'])} |"
            )
    else:
        lines.append("Nothing.")
    lines += ["", "## What does not build on `meta`", "", "| | models |", "|---|---|"]
    reasons = Counter((row["package"], row["meta"]) for row in rows if row["meta"])
    for (package, reason), count in sorted(reasons.items(), key=lambda pair: -pair[1]):
        lines.append(f"| {package}: {_cell(reason)} | {count} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Asks every model without an answer, and writes the page if that was asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--only", help="names, with commas: they are asked again")
    parser.add_argument("--package", choices=list(PACKAGES))
    parser.add_argument("--minutes", type=float, default=1e9, help="then no other model is asked")
    options = parser.parse_args()
    os.environ["NPUSIM_DEVICE_MEMORY"] = MEMORY  # read when a child imports torch_npusim
    sys.path.insert(0, str(ROOT / "tools"))
    import packages.without_vision_ops  # noqa: F401
    import torch._meta_registrations  # noqa: F401
    import transformers.modeling_utils  # noqa: F401

    rows: dict[tuple[str, str], dict[str, Any]] = {}
    if ANSWERS.exists():
        for line in ANSWERS.read_text().splitlines():
            row = json.loads(line)
            rows[row["package"], row["name"]] = row
    only = options.only.split(",") if options.only else []
    names = {package: ordered(listed(), package) for package, (listed, _) in PACKAGES.items()}
    every = [
        (at / len(listed), package, name)  # the packages in turn
        for package, listed in names.items()
        for at, name in enumerate(listed)
        if package == (options.package or package)
    ]
    queue = [
        (package, name)
        for _, package, name in sorted(every)
        if (name in only if only else (package, name) not in rows)
    ]
    ANSWERS.parent.mkdir(exist_ok=True)
    ends = time.monotonic() + 60 * options.minutes
    with ANSWERS.open("a") as kept:
        for at, key in enumerate(queue):
            if time.monotonic() > ends:
                break
            rows[key] = row = asked(*key)
            print(json.dumps(row), file=kept, flush=True)
            verdict = f"meta {row['meta']}" if row["meta"] else row["dry"] or row["ran"] or "ok"
            print(f"{at + 1} of {len(queue)}: {key[1]}: {verdict}", flush=True)
    if options.page:
        totals = {package: len(listed) for package, listed in names.items()}
        PAGE.write_text(page_of(list(rows.values()), totals))


if __name__ == "__main__":
    main()
