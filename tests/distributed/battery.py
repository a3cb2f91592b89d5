# SPDX-License-Identifier: BSD-3-Clause
"""torch's own tests of torch.distributed, as for NCCL, on simulated devices.

    python tests/distributed/battery.py                     all on 2 ranks: two minutes on two cores
    python tests/distributed/battery.py --ranks 4           six minutes; a few tests want 8
    python tests/distributed/battery.py --part 1/4          a quarter of them
    python tests/distributed/battery.py --only test_barrier -v
    python tests/distributed/battery.py --page PAGE.md      write the table of all that is kept

The tests are those that the wheel carries, testing/_internal/distributed/distributed_test.py, under
the CUDA alias and with BACKEND=nccl: under another name most of them skip themselves. torch's own
spawner counts a rank that skips as one that passes; this one forks the ranks itself and keeps apart
what was executed, what was skipped and why. Results are kept in build/battery.
"""

import argparse
import faulthandler
import inspect
import json
import os
import re
import signal
import sys
import tempfile
import time
import traceback
import unittest
from datetime import timedelta
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BEGIN = "<!-- begin: written by python tests/distributed/battery.py --page -->"
END = "<!-- end -->"
LIMIT_S = 100

# Too large for a CPU: the test, a number in it, and what it is here. It trains convolutions of
# 1000 x 1000 points for hundreds of steps.
_SMALLER = {"test_ddp_uneven_inputs": (1000, 100)}

# What NCCL does not do, and what is of another backend.
_OTHER = re.compile(
    r"nccl does not support|only.*(gloo|mpi|ucc)\b|(gloo|mpi|ucc)[- ]only|\{'gloo'\}|gloo batch|"
    r"tested by test_send_recv_nccl",
    re.IGNORECASE,
)
# Skipped wherever it runs.
_OFF = re.compile(r"github\.com/pytorch/pytorch|flakiness|torchvision", re.IGNORECASE)


def prepare(world_size):
    """Sets what the module reads when it is imported, and imports it; uses no device."""
    os.environ |= {
        "NPUSIM_AS_CUDA": "1",
        "NPUSIM_DEVICE_COUNT": str(max(world_size, 2)),
        "BACKEND": "nccl",
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "OMP_NUM_THREADS": "1",
        "PYTORCH_PRINT_REPRO_ON_FAILURE": "0",
    }
    import torch

    torch.set_num_threads(1)
    from torch.testing._internal.distributed import distributed_test

    class Battery(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        pass

    for name, (large, small) in _SMALLER.items():
        code = inspect.unwrap(getattr(Battery, name)).__code__
        assert large in code.co_consts
        constants = tuple(small if one == large else one for one in code.co_consts)
        inspect.unwrap(getattr(Battery, name)).__code__ = code.replace(co_consts=constants)
    return distributed_test, Battery


def _outcome_of(module, battery, name, rank, file_name):
    """Runs one test as one rank; what torch's own spawner does in a child."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal.common_distributed import TEST_SKIPS

    reasons = {skip.exit_code: skip.message for skip in TEST_SKIPS.values()}
    case = battery(name)
    case.rank, case.file_name = rank, file_name
    try:
        if torch.cuda.device_count() < int(case.world_size):
            return "skipped", f"needs {case.world_size} devices"
        seconds = module.CUSTOM_PG_TIMEOUT.get(name, module.default_pg_timeout)
        dist.init_process_group(
            init_method=f"file://{file_name}",
            backend="nccl",
            world_size=int(case.world_size),
            rank=rank,
            timeout=timedelta(seconds=seconds),
        )
        case._barrier()
        torch._C._set_print_stack_traces_on_fatal_signal(True)
        getattr(case, name)()
        case._barrier()
        if dist.is_initialized():
            dist.destroy_process_group()
    except unittest.SkipTest as skip:
        return "skipped", str(skip)
    except SystemExit as end:
        code = end.code or 0
        if code in reasons:
            return "skipped", reasons[code]
        return ("passed", "") if code == 0 else ("failed", f"exit with {code}")
    except BaseException:
        return "failed", traceback.format_exc()
    return "passed", ""


def run_one(module, battery, name, world_size):
    """Forks the ranks of one test; returns (outcome, reason or traceback, seconds)."""
    function = getattr(battery, name)
    if getattr(function, "__unittest_skip__", False):
        return "skipped", function.__unittest_skip_why__, 0.0
    from torch.testing._internal.common_distributed import (
        TIMEOUT_OVERRIDE,
        initialize_temp_directories,
    )

    limit = TIMEOUT_OVERRIDE.get(name, LIMIT_S)
    initialize_temp_directories()
    module.Barrier.init()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        children = []
        for rank in range(world_size):
            sys.stdout.flush()
            child = os.fork()
            if child == 0:
                output = os.open(f"{place}/output{rank}", os.O_CREAT | os.O_WRONLY)
                os.dup2(output, 1)
                os.dup2(output, 2)
                os.setpgid(0, 0)
                faulthandler.dump_traceback_later(limit - 2, file=sys.__stderr__)
                told = _outcome_of(module, battery, name, rank, f"{place}/store")
                Path(f"{place}/{rank}").write_text(json.dumps(told))
                os._exit(0)
            children.append(child)
        ended = {}
        while len(ended) < world_size and time.monotonic() - began < limit:
            for child in set(children) - set(ended):
                pid, status = os.waitpid(child, os.WNOHANG)
                if pid:
                    ended[pid] = os.waitstatus_to_exitcode(status)
            time.sleep(0.01)
        for child in children:
            try:
                os.killpg(child, signal.SIGKILL)
            except ProcessLookupError:
                pass
            if child not in ended:
                os.waitpid(child, 0)
        told = []  # with when, as the others fail because one did
        for rank, child in enumerate(children):
            file = Path(f"{place}/{rank}")
            if file.exists():
                told.append((file.stat().st_mtime_ns, *json.loads(file.read_text())))
            else:
                died = child in ended
                how = f"ended with {ended[child]}" if died else f"ran for {limit} s"
                text = Path(f"{place}/output{rank}").read_text(errors="replace")
                when = 0 if died else time.time_ns()
                told.append((when, "failed", f"rank {rank} {how}\n{text[-3000:]}"))
    seconds = time.monotonic() - began
    for kind in ("failed", "skipped"):
        found = [reason for _, outcome, reason in sorted(told) if outcome == kind]
        # A rank that has nothing to do in a test skips alone.
        if found and (kind == "failed" or len(found) == world_size):
            return kind, found[0], seconds
    return "passed", "", seconds


def applies(reason):
    """Returns whether a test that was skipped for `reason` is one of NCCL's."""
    return not _OTHER.search(reason) and not _OFF.search(reason)


# Why those that fail do.
_WHY = {
    "test_ddp_profiling_torch_profiler": "NCCL's entries `record_param_comms` in traces; those of "
    "simccl are commands of their streams",
}


def _error_in(text):
    """Returns the line of a traceback that says what was raised."""
    lines = [line for line in text.splitlines() if line.strip()] or [""]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Exit)\b", line)]
    return errors[-1] if errors else lines[0]


def _percent(part, whole):
    return f"{part} ({part / (whole or 1):.1%})"


def summary(runs):
    """Returns the numbers of some runs, by what they are called, and what is open, in Markdown."""
    rows = {
        "in the file": [],
        "of other backends": [],
        "switched off by torch, wherever they run": [],
        "apply, and were executed": [],
        "of these passed": [],
    }
    skipped, failed = {}, {}
    for title, results in runs.items():
        by = {kind: {} for kind in ("passed", "failed", "skipped")}
        for name, (outcome, reason, _) in sorted(results.items()):
            by[outcome][name] = reason.splitlines()[0] if outcome == "skipped" else reason
        left = [reason for reason in by["skipped"].values() if applies(reason)]
        other = sum(bool(_OTHER.search(reason)) for reason in by["skipped"].values())
        done = len(by["passed"]) + len(by["failed"])
        cells = (
            str(len(results)),
            str(other),
            str(len(by["skipped"]) - len(left) - other),
            _percent(done, done + len(left)),
            _percent(len(by["passed"]), done),
        )
        for row, cell in zip(rows.values(), cells, strict=True):
            row.append(cell)
        for reason in left:
            skipped.setdefault(reason, dict.fromkeys(runs, 0))[title] += 1
        failed |= by["failed"]
    lines = [f"| | {' | '.join(runs)} |", "|---|" + "---|" * len(runs)]
    lines += [f"| {label} | {' | '.join(cells)} |" for label, cells in rows.items()]
    lines += [
        f"| skipped: {reason} | {' | '.join(map(str, numbers.values()))} |"
        for reason, numbers in sorted(skipped.items())
    ]
    if failed:
        lines += ["", "| failed | what it wants |", "|---|---|"]
    for name, reason in sorted(failed.items()):
        why = _WHY.get(name) or _error_in(reason)[:160].replace("|", "/")
        lines.append(f"| `{name}` | {why} |")
    return "\n".join(lines)


def together(runs):
    """Returns one result for each test: failed if any run failed, passed if any executed it."""
    worth = {"failed": 2, "passed": 1, "skipped": 0}
    best = {}
    for results in runs.values():
        for name, result in results.items():
            if name not in best or worth[result[0]] > worth[best[name][0]]:
                best[name] = result
    return best


def main():
    parser = argparse.ArgumentParser(description="torch's own tests of torch.distributed.")
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--part", default="1/1", metavar="K/N")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--failed", action="store_true", help="those that failed before")
    parser.add_argument("--page", type=Path, help="write the table from what is kept")
    parser.add_argument("-v", action="store_true", help="show why tests fail")
    asked = parser.parse_args()
    place = ROOT / "build" / "battery"
    if asked.page:
        files = sorted(place.glob("results*.json"), key=lambda file: (len(file.name), file.name))
        runs = {file.stem.removeprefix("results"): json.loads(file.read_text()) for file in files}
        most = max(map(len, runs.values()))
        shown = {f"{ranks} ranks": of for ranks, of in runs.items() if len(of) == most}
        shown[f"{', '.join([*runs][:-1])} or {[*runs][-1]} ranks"] = together(runs)
        head, rest = asked.page.read_text().split(BEGIN)
        asked.page.write_text(f"{head}{BEGIN}\n\n{summary(shown)}\n\n{END}{rest.split(END)[1]}")
        return
    kept = place / f"results{asked.ranks}.json"
    results = json.loads(kept.read_text()) if kept.exists() else {}
    module, battery = prepare(asked.ranks)
    every = unittest.TestLoader().getTestCaseNames(battery)
    part, parts = map(int, asked.part.split("/"))
    names = asked.only or [name for i, name in enumerate(every) if i % parts == part - 1]
    if asked.failed:
        names = [name for name in names if results.get(name, ["failed"])[0] == "failed"]
    for name in names:
        results[name] = run_one(module, battery, name, asked.ranks)
        outcome, reason, seconds = results[name]
        shown = reason if asked.v else _error_in(reason)[:150]
        print(f"{outcome:8}{seconds:6.1f} s  {name}  {shown}", flush=True)
        place.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(results, indent=1))
    print(summary({f"{asked.ranks} ranks": {name: results[name] for name in names}}))


if __name__ == "__main__":
    main()
