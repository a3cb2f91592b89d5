# SPDX-License-Identifier: BSD-3-Clause
"""`npusim fit --sweep ... --executor dask://host:port`: `make dask`."""

import json
from pathlib import Path

import dask
import pytest
from distributed import LocalCluster
from profiling.fit_process import fit

from torch_npusim.fit import on_dask
from torch_npusim.fit.trials import Job, TrialError

BLOCKS = str(Path(__file__).parents[1] / "profiling" / "scripts" / "fitted_blocks.py")

# The worker started the process that started the server that started this one.
KILLS = """
import os, pathlib, signal, sys, torch
torch.empty(1 << 20, device="npusim")
if sys.argv[1] == "2":
    above = os.getpid()
    while "on_dask" not in (pathlib.Path("/proc") / str(above) / "cmdline").read_text():
        above = int((pathlib.Path("/proc") / str(above) / "stat").read_text().split()[3])
    worker = int((pathlib.Path("/proc") / str(above) / "stat").read_text().split()[3])
    os.kill(worker, signal.SIGKILL)
    signal.pause()
"""


@pytest.fixture(scope="module")
def scheduler():
    """The address of a scheduler that gives a row up with its first worker."""
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        LocalCluster(n_workers=3, threads_per_worker=1, dashboard_address=":0") as cluster,
    ):
        yield cluster.scheduler_address


def named(address):
    return address.replace("tcp:", "dask:")


def test_a_worker_makes_the_rows_of_this_machine(scheduler):
    words = ["--json", "--sweep", "memory=32MiB,1GiB", "--temporaries", "npusim", BLOCKS]
    here, there = fit(*words), fit("--executor", named(scheduler), *words)
    assert (there[0], there[1]) == (here[0], here[1])
    assert [row["fits"] for row in json.loads(there[1])] == [False, True]


def test_a_script_that_a_worker_does_not_have_is_a_row_with_a_sentence(scheduler):
    ((at, row),) = on_dask.rows([({}, Job("nowhere.py"))], scheduler)
    assert (at, row["fits"]) == (0, False)
    assert "nowhere.py" in row["error"]


def test_a_worker_that_dies_loses_its_row_alone(scheduler, tmp_path):
    script = tmp_path / "kills.py"
    script.write_text(KILLS)
    status, out, _ = fit(
        "--json", "--sweep", "1=1,2,3", "--executor", named(scheduler), script, "0"
    )
    first, lost, last = json.loads(out)
    assert lost["error"].startswith("on dask's worker: KilledWorker: Attempted to run task ")
    assert (first["fits"], lost["fits"], last["fits"], status) == (True, False, True, 1)
    assert first["devices"] == last["devices"]


def test_a_scheduler_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(on_dask, "_PATIENCE_S", 1)
    with pytest.raises(TrialError, match=r"tcp://127\.0\.0\.1:9"):
        list(on_dask.rows([({}, Job(BLOCKS))], "tcp://127.0.0.1:9"))


def test_a_scheduler_without_workers_is_refused(monkeypatch):
    monkeypatch.setattr(on_dask, "_PATIENCE_S", 1)
    with (
        LocalCluster(n_workers=0, dashboard_address=":0", processes=False) as cluster,
        pytest.raises(TrialError, match="no worker for 1 s"),
    ):
        list(on_dask.rows([({}, Job(BLOCKS))], cluster.scheduler_address))
