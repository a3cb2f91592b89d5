# SPDX-License-Identifier: BSD-3-Clause
"""torch's operator database, compiled against eager, on npusim: one process per entry.

    python tests/compile/op_db.py --seconds 500           # as many entries as that allows
    python tests/compile/op_db.py --page docs/compile_ops.md
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
    "native_batch_norm": "torch's decomposition returns the running statistics as the saved ones "
    'unless the device is called "cpu"; eager npusim returns empty tensors, as the CPU does',
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
    for sample in op.sample_inputs("cpu", dtype, requires_grad=requires_grad):
        leaves = torch.utils._pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
        shape = str([tuple(x.shape) if isinstance(x, torch.Tensor) else x for x in leaves])
        if shape in shapes:
            continue
        shapes.add(shape)
        chosen.append(sample)
        if len(chosen) == wanted:
            break
    return chosen


def moved(tree, device):
    """Copies of all tensors on `device`, and devices among the arguments likewise."""

    def move(x):
        if isinstance(x, torch.Tensor):
            return x.detach().clone().to(device).requires_grad_(x.requires_grad)
        if isinstance(x, torch.device):
            return torch.device(device)
        return x

    return torch.utils._pytree.tree_map(move, tree)


def results(function, op, sample, device, backward):
    """What the function returns, and the gradients of its differentiable results."""
    torch.manual_seed(0)
    args = moved((sample.input, *sample.args), device)
    kwargs = moved(sample.kwargs, device)
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


def compare(ours, theirs):
    assert len(ours) == len(theirs), f"{len(ours)} results, expected {len(theirs)}"
    for our, their in zip(ours, theirs, strict=True):
        if our is None or their is None:
            assert our is their, "a gradient is missing"
        else:
            torch.testing.assert_close(our, their, equal_nan=True, rtol=1e-4, atol=1e-4)


def one(op, device, wanted):
    """Raises unless compiled and eager agree on `device`; returns how many samples did."""
    dtype = next((d for d in DTYPES if d in op.supported_dtypes("cpu")), None)
    if dtype is None:
        dtype = sorted(op.supported_dtypes("cpu"), key=str)[0]
    backward = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    chosen = samples(op, dtype, wanted, backward)
    for sample in chosen:
        torch._dynamo.reset()

        def call(*args, **kwargs):
            return op(*args, **kwargs)

        expected = results(call, op, sample, device, backward)
        compiled = torch.compile(call)
        compare(results(compiled, op, sample, device, backward), expected)
    return len(chosen)


def judge(name, op, wanted):
    """The result of one entry, for a process of its own."""
    torch._inductor.config.fallback_random = True
    try:
        return {"status": "pass", "samples": one(op, "npusim", wanted)}
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
    fair = len(found) - counts["cpu too"]
    lines = [
        "# Operators, compiled",
        "",
        "Generated: `python tests/compile/op_db.py --page docs/compile_ops.md`.",
        "",
        "Each entry of torch's operator database, compiled by Inductor for npusim against eager",
        "npusim, forward and backward: the first samples of different shapes, in one dtype, one",
        "process per entry. What fails on the CPU too (eager CPU against Inductor's CPU) is no",
        "fault of the device.",
        "",
        "| | entries |",
        "|---|---|",
        f"| in the database | {total} |",
        f"| tried | {len(found)} |",
        f"| pass | {passing} |",
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
