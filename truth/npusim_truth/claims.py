# SPDX-License-Identifier: BSD-3-Clause
"""npusim's claims: its answers to the recorder's questions, asked in processes of their own.

    npusim truth record --out claims.zip

is the recorder with two changes. Rates and memory are asked in dry runs: sizes of a GPU cost a
CPU nothing, and memory is what a prediction has. The host of the recorded machine is charged.
"""

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from npusim_truth import placements
from npusim_truth.recorder import batches, command, workers
from npusim_truth.recordings import Key, Recording, TruthError, host_of, load, spec_of

#: This file, not its module: frames of `-m` have no file, and torch's table of operators looks for
#: it among all modules, for each sample.
LAUNCH = ["-P", __file__]
_HOST = "TRUTH_HOST"  # the host that is charged, for processes of this file


def environment(
    spec: str | None,
    memory_bytes: int | None,
    torch_version: str,
    devices: int = 2,
    host: str = "spec",
) -> dict[str, str]:
    """Returns the variables under which npusim claims to be a chip with a version of torch."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("NPUSIM_")}
    kept.pop("PYTORCH_ALLOC_CONF", None)
    kept.pop("PYTORCH_CUDA_ALLOC_CONF", None)
    chosen = {
        "NPUSIM_AS_CUDA": "1",
        "NPUSIM_AUTOLOAD": "1",
        "NPUSIM_ALLOCATOR": placements.preset(torch_version),
        "NPUSIM_DEVICE_ASSERT": "late",
        "NPUSIM_DEVICE_COUNT": str(min(max(devices, 1), 8)),
        _HOST: host,
    }
    if spec:
        chosen["NPUSIM_SPEC"] = spec
    if memory_bytes:
        chosen["NPUSIM_DEVICE_MEMORY"] = str(memory_bytes)
    return kept | chosen


def ask(recording: Recording, spec: str | None = None, minutes: float = 30) -> Recording:
    """Returns npusim's answers to the questions that a recording has.

    Args:
        recording: Whose keys are asked.
        spec: Name or path of the specification; by default that of the recording's chip.
        minutes: How long at most.

    Raises:
        TruthError: If the recorder does not end well.
    """
    wanted = [key for section, key in recording.keys() if section != "identity"]
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "work"
        work.mkdir()
        (work / "only").write_text(json.dumps(wanted + list(recording.answers.get("identity", {}))))
        out = Path(folder) / "claims.zip"
        memory = recording.options.get("memory", 6 << 30)
        words = ["--work", str(work), "--out", str(out), "--minutes", str(minutes)]
        words += ["--memory", f"{memory >> 20}MiB", "--sections", ",".join(recording.answers)]
        status = run(
            words,
            environment(
                spec or spec_of(recording),
                recording.identity("total_memory"),
                recording.torch,
                recording.identity("devices", 2),
                host_of(recording),
            ),
        )
        if status:
            raise TruthError(f"npusim was asked the questions of {recording.name}, and gave up")
        return load(out)


def run(words: list[str], env: dict[str, str]) -> int:
    """Runs the recorder on npusim, which ends with this process; returns its exit status."""
    return subprocess.run([sys.executable, *LAUNCH, *words], env=env, check=False).returncode


def _dry(temporaries: str = "npusim") -> Any:
    from torch_npusim.sim import dry_run

    return dry_run(memory="512GiB", temporaries=temporaries)


def _charged() -> Any:
    from torch_npusim.sim import specs
    from torch_npusim.sim.host_layers import charged

    specs.use_host(os.environ.get(_HOST, "spec"))
    return charged(specs.used)


if __name__ == "__main__":
    workers.end_with_parent(os.getppid())
    layers = _charged()
    layers.__enter__()  # for good
    # Memory is that of `npusim fit`: CUDA's temporaries and saved tensors; and so are kernels.
    as_cuda = functools.partial(_dry, "cuda")
    lists = ("allocation.operators", "allocation.layers", "steps.trained")
    batches.AROUND.update(dict.fromkeys(lists, as_cuda))
    batches.AROUND.update(dict.fromkeys(("rates.kernels", "rates.others"), as_cuda))
    batches.AROUND["rates.products"] = _dry
    for name, batch in batches.BATCHES.items():  # a simulator does not hang, but may be slow
        batches.BATCHES[name] = batch._replace(limit_s=10 * batch.limit_s)
    batches.LAUNCH = LAUNCH
    command.run()

__all__ = ["Key", "ask", "environment", "run"]
