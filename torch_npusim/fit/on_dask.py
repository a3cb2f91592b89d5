# SPDX-License-Identifier: BSD-3-Clause
"""Rows of a sweep on dask's workers: `npusim fit --sweep ... --executor dask://host:port`.

A worker starts a process for each row, with the folder and the settings of the command, so it makes
the row that this machine would. The script has the same path on each machine.
"""

import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from distributed import Client, KilledWorker, wait

from torch_npusim import __version__
from torch_npusim.fit.trials import Point, TrialError, lost_row, row_of

# Variables that a worker's process gets from the command.
_PREFIXES = (
    "CUBLAS_", "CUDA_", "MKL_", "NPUSIM_", "NVIDIA_", "OMP_", "PYTHONPATH", "PYTORCH_", "TORCH_",
)  # fmt: skip
_PATIENCE_S = 60  # for a scheduler, and for a worker if there is none


def rows(points: Sequence[Point], address: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields number and row of each point as it comes.

    A row whose worker dies goes to another one, as often as the scheduler allows, and at last
    alone: a worker takes rows that wait for it with it.

    Args:
        points: Of trials.grid().
        address: Of dask's scheduler, as Client() takes it.

    Raises:
        TrialError: If there is no scheduler, or no worker comes.
    """
    chosen = {name: value for name, value in os.environ.items() if name.startswith(_PREFIXES)}
    # dask gives its workers one thread, with which kernels have other temporaries.
    chosen.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))
    try:
        client = Client(address, timeout=_PATIENCE_S)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as problem:
        raise TrialError(str(problem)) from None
    with client:
        try:
            client.wait_for_workers(1, timeout=_PATIENCE_S)
        except TimeoutError:
            raise TrialError(f"no worker for {_PATIENCE_S} s") from None
        task = (__version__, os.getcwd(), chosen)
        suspects = []
        for at, found in _found(client, dict(enumerate(points)), task):
            if isinstance(found, KilledWorker):  # or a row beside it has ended the worker
                suspects.append(at)
            else:
                yield at, _row(points[at], found)
        for at in suspects:
            for _, found in _found(client, {at: points[at]}, task):
                yield at, _row(points[at], found)


def _found(
    client: Client, points: dict[int, Point], task: tuple[Any, ...]
) -> Iterator[tuple[int, dict[str, Any] | Exception]]:
    """Yields number and row of points as they come, or the error that ended one."""
    numbers = {
        client.submit(_on_worker, point, *task, pure=False): at for at, point in points.items()
    }
    last_seen = time.monotonic()
    while numbers:
        try:
            waited = wait(list(numbers), timeout=2, return_when="FIRST_COMPLETED")  # type: ignore[no-untyped-call]
            done = waited.done
        except TimeoutError:
            done = set()
        for future in done:
            try:
                found = future.result()
            except Exception as problem:  # the worker died, or cannot load this package
                found = problem
            yield numbers.pop(future), found
        if client.scheduler_info()["workers"]:
            last_seen = time.monotonic()
        elif time.monotonic() - last_seen > _PATIENCE_S:
            for at in numbers.values():
                yield at, TrialError(f"no worker for {_PATIENCE_S} s")
            return


def _row(point: Point, found: dict[str, Any] | Exception) -> dict[str, Any]:
    return lost_row(point, _sentence(found)) if isinstance(found, Exception) else found


def _sentence(problem: Exception) -> str:
    said = str(problem).strip().splitlines()
    return f"on dask's worker: {type(problem).__name__}: {said[0] if said else ''}"


def _on_worker(point: Point, version: str, folder: str, chosen: dict[str, str]) -> dict[str, Any]:
    """Returns the row of a process of its own: a worker's processes may have no children."""
    if version != __version__:
        return lost_row(point, f"the worker has torch_npusim {__version__}, and not {version}")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_PREFIXES)}
    code = f"from {__name__} import _in_process; _in_process()"
    with tempfile.TemporaryFile() as complaints:
        process = subprocess.Popen(
            [sys.executable, "-c", code], cwd=folder, env=kept | chosen, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=complaints,
        )  # fmt: skip
        with process:
            assert process.stdin is not None
            assert process.stdout is not None
            pickle.dump(point, process.stdin)
            process.stdin.flush()  # it stays open as long as this worker lives
            told = process.stdout.read()
        complaints.seek(0)
        last = complaints.read().decode(errors="replace").strip().splitlines()[-1:]
    if process.returncode:
        return lost_row(point, ": ".join([f"status {process.returncode}", *last]))
    row: dict[str, Any] = pickle.loads(told)
    return row


def _in_process() -> None:
    point = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_worker, daemon=True).start()
    sys.stdout.buffer.write(pickle.dumps(row_of(point)))


def _end_with_worker() -> None:
    os.read(0, 1)  # nothing comes until the end
    os._exit(1)
