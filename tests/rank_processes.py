# SPDX-License-Identifier: BSD-3-Clause
"""Runs a function on several ranks, each a process of its own, with a limit for everything.

The processes are forked from one that has imported torch and not used a device: they start at once.
"""

import faulthandler
import importlib.util
import inspect
import multiprocessing
import multiprocessing.forkserver
import os
import pickle
import sys
import tempfile
import time
import traceback
from pathlib import Path

import processes
from repo.sources import ROOT

DEVICES = 8  # that a rank sees
_PRELOAD = ["torch", "torch_npusim", "torch.distributed.fsdp", "torch.distributed.tensor"]
_started = []  # has an element once the fork server is that of this file


class RankError(AssertionError):
    """A rank raised, or did not end."""


def context():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    if not _started:  # a server that other tests have started has other modules and variables
        multiprocessing.forkserver._forkserver._stop()
        _started.append(True)
    kept = dict(os.environ)
    for name in [name for name in os.environ if "NPUSIM" in name]:
        del os.environ[name]
    os.environ |= {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"}
    os.environ["NPUSIM_DEVICE_COUNT"] = str(DEVICES)
    try:
        multiprocessing.forkserver.ensure_running()
        server = multiprocessing.forkserver._forkserver._forkserver_pid
        if server not in processes.servers:  # whose processor time seconds.py counts
            processes.servers.append(server)
    finally:
        os.environ.clear()
        os.environ.update(kept)
    return context


_kept = []


def _keep_groups_of_gloo():
    """DDP's reducer would destroy them, with the GIL that their threads want: a deadlock of torch.

    pytorch/pytorch 56297. Groups of simccl are not kept: they have a remedy.
    """
    import torch.distributed as dist

    destroy = dist.destroy_process_group

    def destroy_and_keep(group=None):
        world = dist.distributed_c10d._world
        _kept.extend(group for group, (backend, _) in world.pg_map.items() if backend == "gloo")
        destroy(group)

    dist.destroy_process_group = destroy_and_keep


def _main(file, name, rank, size, place, arguments, environment, limit):
    os.environ.update(environment)
    with open(f"{place}/output{rank}", "w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    faulthandler.dump_traceback_later(max(1, limit - 2), exit=False, file=sys.__stderr__)
    try:
        import torch

        torch.set_num_threads(1)
        _keep_groups_of_gloo()
        spec = importlib.util.spec_from_file_location("of_the_test", file)
        module = sys.modules["of_the_test"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        outcome = ("result", getattr(module, name)(rank, size, f"{place}/store", *arguments))
    except BaseException as problem:
        outcome = ("error", type(problem).__name__, str(problem), traceback.format_exc())
    Path(place, str(rank)).write_bytes(pickle.dumps(outcome))
    sys.stdout.flush()
    sys.stderr.flush()
    if outcome[0] == "error":
        os._exit(1)  # the group may be stuck


def run_ranks(function, size, *arguments, environment=None, timeout=60, errors=False):
    """Returns what `function(rank, size, store_file, *arguments)` returned on each rank.

    With `errors`, what a rank raised stands in the list as (type's name, text); a rank that died
    has left None. Nobody outlives the timeout.
    """
    processes = context()
    file = inspect.getfile(function)
    with tempfile.TemporaryDirectory() as place:
        ranks = [
            processes.Process(
                target=_main,
                args=(
                    file,
                    function.__name__,
                    rank,
                    size,
                    place,
                    arguments,
                    environment or {},
                    timeout,
                ),
            )
            for rank in range(size)
        ]
        for rank in ranks:
            rank.start()
        deadline = time.monotonic() + timeout
        try:
            for rank in ranks:
                rank.join(max(0.1, deadline - time.monotonic()))
            if any(rank.is_alive() for rank in ranks):
                states = [_state(Path(place), rank) for rank in range(size)]
                raise RankError(f"still running after {timeout} s:\n" + "\n".join(states))
        finally:
            for rank in ranks:
                rank.kill()
                rank.join()
        return [_outcome(Path(place), rank, errors) for rank in range(size)]


def _read(place, rank):
    file = place / str(rank)
    return pickle.loads(file.read_bytes()) if file.exists() else None


def _state(place, rank):
    outcome = _read(place, rank)
    ended = "no result" if outcome is None else str(outcome[-1])
    return f"rank {rank}: {ended}\n" + (place / f"output{rank}").read_text()


def _outcome(place, rank, errors):
    outcome = _read(place, rank)
    if outcome is not None and outcome[0] == "result":
        return outcome[1]
    if errors:
        return outcome and outcome[1:3]
    raise RankError(_state(place, rank))
