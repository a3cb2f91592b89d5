# SPDX-License-Identifier: BSD-3-Clause
"""Cost of the conformance kit beyond the operator calls that it makes.

    python tools/bench/conformance_overhead.py [--device npusim] [--ops GLOBS]

Bare: every sample is made, copied, run on the CPU and on the device, and the results copied back.
Kit: the same cases of the property `forward` through log and isolated worker. The same
operators run in both, one after the other, several times, in alternation; the ratio is that of the
smallest CPU times, which a busy machine changes little. Start-up (imports, the database) is in
neither.

Then what a crash costs: an operator of the database is made to kill its process, and the time from
the outcome "crash" to the next worker's first outcome is taken.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
import warnings
from pathlib import Path

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

import torch

from npusim_conformance.backend.expectations import Expectations
from npusim_conformance.cases import catalog
from npusim_conformance.cases.selection import Selection
from npusim_conformance.inputs import torch_testing
from npusim_conformance.inputs.transfer import Transfer, tensors_of
from npusim_conformance.record import log
from npusim_conformance.run.runner import Runner
from npusim_conformance.run.worker import WorkerConfig


def bare(names: list[str], config: WorkerConfig) -> None:
    """Operator calls, and what cannot be left out to make them."""
    device = torch.device(config.device)
    for name in names:
        _, subject, dtype = catalog.resolve(catalog.Case.parse(name))
        operator = subject.info
        for sample in torch_testing.sample_inputs(operator, dtype, False, config.seed):
            given = (sample.input, sample.args, sample.kwargs)
            for where in (torch.device("cpu"), device):
                value, args, kwargs = Transfer(where)(given)
                try:
                    result = operator(value, *args, **kwargs)
                except Exception:  # the kit runs these, too
                    continue
                for tensor in tensors_of(result):
                    tensor.detach().cpu()


def kit(names: list[str], config: WorkerConfig, directory: Path) -> None:
    """The same through runner, worker and log."""
    with log.LogWriter(directory / "run.jsonl", {}, resume=False) as writer:
        for outcome in Runner(config, jobs=1).run(names):
            writer.add(outcome)


def in_child(work: object) -> float:
    """CPU seconds of work() in a forked process and its children, told by the process itself."""
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        started = sum(os.times()[:4])
        work()  # type: ignore[operator]
        os.write(write_fd, json.dumps(sum(os.times()[:4]) - started).encode())
        os._exit(0)
    os.close(write_fd)
    with os.fdopen(read_fd) as told:
        seconds = json.loads(told.read())
    os.waitpid(pid, 0)
    return float(seconds)


def crash_seconds(config: WorkerConfig, rounds: int) -> list[float]:
    """From the outcome of a crash to the next outcome, for each of `rounds` crashes."""
    operator = torch_testing.operators()["sub"]
    right = operator.op
    operator.op = lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGKILL)
    names = ["op:sub/forward/float32", "op:add/forward/bool"]
    seconds = []
    try:
        for _ in range(rounds):
            outcomes = Runner(config, jobs=1).run(names)
            next(outcomes)
            crashed = time.perf_counter()
            next(outcomes)
            seconds.append(time.perf_counter() - crashed)
            outcomes.close()
    finally:
        operator.op = right
    return seconds


def main() -> int:
    """Prints both times, their ratio, and the cost of a crash."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="npusim")
    parser.add_argument("--import", dest="import_name", default="torch_npusim")
    parser.add_argument("--ops", default="")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    selection = Selection("full", subjects=options.ops, properties="forward")
    names = [str(case) for case in catalog.cases(selection) if case.kind == "op"]
    config = WorkerConfig(options.device, options.import_name, Expectations())

    def bare_work() -> None:
        __import__(options.import_name or "torch")
        bare(names, config)

    times: dict[str, list[float]] = {"bare": [], "kit": []}
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(options.rounds):
            times["bare"].append(in_child(bare_work))
            times["kit"].append(in_child(lambda: kit(names, config, Path(directory))))
    least = {what: min(values) for what, values in times.items()}
    print(f"{len(names)} cases; bare {least['bare']:.2f} s, kit {least['kit']:.2f} s")
    crashes = sorted(crash_seconds(config, 5))
    print(f"a crash costs {crashes[0]:.2f} to {crashes[-1]:.2f} s (target: <= 0.5 s)")
    print(f"overhead {least['kit'] / least['bare'] - 1:+.1%} (target: <= 30 %)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
