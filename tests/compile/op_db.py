# SPDX-License-Identifier: BSD-3-Clause
"""torch's operator database, compiled against eager, on npusim: one process per entry.

    python tests/compile/op_db.py --seconds 500           # as many entries as that allows
    python tests/compile/op_db.py --page docs/reference/compile_ops.md
    python tests/compile/op_db.py --only add,softmax --anew

Results are files in build/compile_ops, one per entry: a run goes on where the last one ended. An
entry that fails is tried on the CPU too, where Inductor has the same loops.
"""

import argparse
import json
import os
import re
import resource
import signal
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "build" / "compile_ops"
SECONDS_OF_AN_ENTRY = 240
MEMORY_OF_AN_ENTRY = 8 << 30
DTYPES = (torch.float32, torch.complex64, torch.int64, torch.bool)

# Failures that are understood; the page says why they are there.
REASONS = {
    "nn.functional.batch_norm.without_cudnn": "CUDA's only",
    "nn.functional.dropout": "where nothing is dropped eager returns its argument, compiled code a "
    "copy that has a gradient",
    "nn.functional.max_pool3d": "the gradient of a scattered tensor is wrong",
    "tensor_split": "its sections must be on the host",
    "torch._scaled_mm": "compiled code refuses the scattered operands that eager takes",
    "torch.ops.aten._efficient_attention_forward": "CUDA's only",
    "torch.ops.aten._flash_attention_forward": "CUDA's only",
}


def entries():
    """The entries, by name with variant."""
    from torch.testing._internal.common_methods_invocations import op_db

    named = {}
    for op in op_db:
        name = op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")
        named[name] = op
    return named


def samples(op, dtype, wanted, requires_grad):
    """The first samples that differ in their arguments' shapes, made on the CPU."""
    chosen, shapes = [], set()
    for sample in op.sample_inputs_func(op, "cpu", dtype, requires_grad):
        leaves = torch.utils._pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
        shape = str([tuple(x.shape) if isinstance(x, torch.Tensor) else x for x in leaves])
        if shape in shapes:
            continue
        shapes.add(shape)
        chosen.append(sample)
        if len(chosen) == wanted:
            break
    return chosen


def moved(tree, device, scattered):
    """Copies of all tensors on `device`, and devices among the arguments likewise.

    Scattered ones have their dimensions in the opposite order in memory, or gaps between their
    elements, so that an order of memory taken for one of elements shows.
    """

    def scatter(x):
        if x.ndim < 2:
            return torch.stack((x, x), dim=-1)[..., 0]
        turned = tuple(reversed(range(x.ndim)))
        return x.permute(turned).contiguous().permute(turned)

    def move(x):
        if isinstance(x, torch.Tensor):
            copy = x.detach().clone().to(device)
            dense = copy.layout == torch.strided and not copy.is_quantized
            copy = scatter(copy) if scattered and dense else copy
            return copy.detach().requires_grad_(x.requires_grad)
        if isinstance(x, torch.device):
            return torch.device(device)
        return x

    return torch.utils._pytree.tree_map(move, tree)


def results(function, sample, device, scattered, backward):
    """The function's results, and the gradients of its differentiable results."""
    torch.manual_seed(0)
    args = moved((sample.input, *sample.args), device, scattered)
    kwargs = moved(sample.kwargs, device, scattered)
    out = function(*args, **kwargs)
    leaves = [x for x in torch.utils._pytree.tree_leaves((args, kwargs)) if needs_grad(x)]
    found = [x for x in torch.utils._pytree.tree_leaves(out) if isinstance(x, torch.Tensor)]
    roots = [x for x in found if x.requires_grad and x.grad_fn is not None]
    gradients = []
    if backward and leaves and roots:
        loss = sum((x.real if x.is_complex() else x).sum() for x in roots)
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
    return [x.detach().cpu() if x is not None else None for x in (*found, *gradients)]


def needs_grad(x):
    return isinstance(x, torch.Tensor) and x.requires_grad


def compare(name, ours, theirs):
    if name.startswith(("empty", "new_empty")):  # which have no values
        ours, theirs = ([x.new_zeros(()).expand(x.shape) for x in both] for both in (ours, theirs))
    assert len(ours) == len(theirs), f"{len(ours)} results, expected {len(theirs)}"
    for our, their in zip(ours, theirs, strict=True):
        if our is None or their is None:
            assert our is their, "a gradient is missing"
        else:
            if our.dtype == their.dtype and our.dtype.itemsize == 1 and our.is_floating_point():
                our, their = our.float(), their.float()  # not to be bitwise equal
            torch.testing.assert_close(our, their, equal_nan=True, rtol=1e-4, atol=1e-4)


def one(op, device, wanted):
    """Raises unless compiled and eager agree on `device`; returns how many samples did, and how
    many of them were scattered: every other one, where the eager operator takes it so."""
    known = op.supported_dtypes("cpu")
    dtype = next((d for d in (*DTYPES, *sorted(known, key=str)) if d in known), None)
    if dtype is None:
        return Counter()
    with_backward = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    chosen = samples(op, dtype, wanted, with_backward)
    if len(chosen) == 1:
        chosen *= min(wanted, 2)
    counted = Counter(samples=0, scattered=0)
    for i, sample in enumerate(chosen):
        torch._dynamo.reset()

        def call(*args, **kwargs):
            return op(*args, **kwargs)

        # As much as eager takes: some want other strides, some have no gradient of a sum.
        for scattered, backward in (
            ((i % 2 == 1), with_backward),
            (False, with_backward),
            (False, False),
        ):
            try:
                expected = results(call, sample, device, scattered, backward)
                break
            except RuntimeError:
                continue
        else:
            continue  # such as indices that must be on the host
        compiled = torch.compile(call)
        compare(op.name, results(compiled, sample, device, scattered, backward), expected)
        counted.update(samples=1, scattered=int(scattered))
    return counted


def judge(name, op, wanted):
    """The result of one entry, for a process of its own."""
    from torch.testing._internal import common_methods_invocations

    # Entries with random numbers set the seed themselves, which no graph may; results() sets it.
    common_methods_invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
    torch._inductor.config.fallback_random = True
    try:
        counted = one(op, "npusim", wanted)
        return {"status": "pass" if counted["samples"] else "n/a", **counted}
    except Exception as problem:
        text = f"{type(problem).__name__}: {problem}"
        trace = traceback.format_exc()[-4000:]
    try:
        one(op, "cpu", wanted)
    except Exception as problem:
        on_cpu = f"{type(problem).__name__}: {problem}"
        return {"status": "cpu too", "error": text, "cpu": on_cpu[:500]}
    return {"status": "fail", "error": text[:2000], "trace": trace}


def in_child(name, op, wanted, limit):
    """Runs judge() in a fork with limits, and writes what came of it."""
    begun = time.time()
    path = OUT / (re.sub(r"[^\w.]", "_", name) + ".json")
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_OF_AN_ENTRY, MEMORY_OF_AN_ENTRY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
        result = judge(name, op, wanted)
        path.write_text(json.dumps({"name": name, **result, "seconds": time.time() - begun}))
        os._exit(0)
    while time.time() - begun < limit:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.02)
    else:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        status = None
    if not path.exists():
        what = {"status": "timeout"} if status is None else {"status": "crash", "wait": status}
        path.write_text(json.dumps({"name": name, **what, "seconds": time.time() - begun}))
    return json.loads(path.read_text())


def page(found):
    """The page of the results that are there."""
    counts = Counter(one["status"] for one in found)
    total = len(entries())
    passing = counts["pass"]
    fair = len(found) - counts["cpu too"] - counts["n/a"]
    lines = [
        "# Operators, compiled",
        "",
        "Generated: `python tests/compile/op_db.py --page docs/reference/compile_ops.md`.",
        "",
        "Each entry of torch's operator database, compiled by Inductor for npusim against eager",
        "npusim, forward and backward, in one dtype and one process per entry: the first two",
        "samples of different shapes, the second *scattered*: its dimensions in the opposite order",
        "in memory, or gaps between its elements. What fails on the CPU too (eager CPU against",
        "Inductor's CPU) is no fault of the device. A whole run takes about an hour on two cores",
        "(`--shard 0/2`, `--shard 1/2`).",
        "",
        "| | entries |",
        "|---|---|",
        f"| in the database | {total} |",
        f"| tried | {len(found)} |",
        f"| pass | {passing} |",
        f"| no sample that eager npusim takes | {counts['n/a']} |",
        f"| fail on the CPU too | {counts['cpu too']} |",
        f"| fail | {counts['fail']} |",
        f"| time limit of {SECONDS_OF_AN_ENTRY} s | {counts['timeout']} |",
        f"| crash | {counts['crash']} |",
        "",
        f"{passing} of the {fair} that work on the CPU: {100 * passing / max(fair, 1):.1f} %.",
        "",
        "| entry | | |",
        "|---|---|---|",
    ]
    for result in sorted(found, key=lambda one: one["name"]):
        if result["status"] != "pass":
            error = (result.get("error") or "").splitlines()
            shown = (error[0][:160] if error else "").replace("|", "\\|").replace(str(ROOT), "")
            shown = REASONS.get(result["name"], shown)
            lines.append(f"| `{result['name']}` | {result['status']} | {shown} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="names, separated by commas")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of the whole run")
    parser.add_argument("--samples", type=int, default=2, help="per entry")
    parser.add_argument("--shard", default="0/1", help="k/n: every n-th entry, from the k-th")
    parser.add_argument("--anew", action="store_true", help="again what has a result")
    parser.add_argument("--page", type=Path, help="write the page and run nothing")
    options = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    if options.page:
        found = [json.loads(path.read_text()) for path in sorted(OUT.glob("*.json"))]
        options.page.write_text(page(found))
        return 0
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(ROOT / "build" / "inductor"))
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    import torch._inductor.compile_fx

    import torch_npusim  # noqa: F401

    torch.set_num_threads(1)
    begun = time.time()
    failed = 0
    named = entries()
    first, every = map(int, options.shard.split("/"))
    names = options.only.split(",") if options.only else list(named)[first::every]
    for name in names:
        path = OUT / (re.sub(r"[^\w.]", "_", name) + ".json")
        if path.exists():
            if not options.anew:
                continue
            path.unlink()
        left = options.seconds - (time.time() - begun)
        if left <= 0:
            break
        result = in_child(name, named[name], options.samples, min(SECONDS_OF_AN_ENTRY, left + 30))
        failed += result["status"] in ("fail", "timeout", "crash")
        print(
            f"{result['status']:8} {result['seconds']:6.1f} s  {name}  "
            f"{result.get('error', '').splitlines()[:1]}",
            flush=True,
        )
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
