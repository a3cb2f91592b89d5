# SPDX-License-Identifier: BSD-3-Clause
"""The flight recorder in the form of torch's, which `torch.distributed.flight_recorder` reads."""

import json
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import torch
from torch.distributed import distributed_c10d as c10d
from torch.distributed.distributed_c10d import PrefixStore, Store

from torch_npusim import _C

_FAILED = "failed"  # the key with which a rank asks the others for their files
_SECONDS = 0.5  # between two looks at it

_written: set[int] = set()  # ranks of the job that have a file
_stores: dict[int, Store] = {}
_latest = [0]  # the rank in the job that was the last to begin here


def is_set(name: str, default: str = "0") -> bool:
    """Reads a variable of torch that is a truth value, as torch does.

    Raises:
        RuntimeError: If it is something else.
    """
    value = os.environ.get(name, default).lower()
    if value in ("y", "yes", "1", "t", "true"):
        return True
    if value in ("n", "no", "0", "f", "false"):
        return False
    raise RuntimeError(f"Invalid value for environment variable: {name}={value}")


def _rank() -> int:
    """Returns the rank whose records the caller means: of ranks in threads, the thread's."""
    return c10d.get_rank() if c10d.is_initialized() else _latest[0]


def _trace(collectives: bool, stacks: bool, active: bool, rank: int) -> dict[str, Any]:
    cores: Any = torch._C._distributed_c10d
    core = pickle.loads(cores._dump_fr_trace(includeCollectives=False))
    groups = _C.flight_groups(rank)
    trace: dict[str, Any] = {
        "version": core["version"],
        "comm_lib_version": "simccl",
        "pg_config": {
            name: {"name": name, "desc": description, "ranks": str(ranks)}
            for _, name, description, ranks, *_ in groups
        },
        "pg_status": {
            str(uid): {
                "last_enqueued_collective": enqueued,
                "last_started_collective": started,
                "last_completed_collective": completed,
            }
            for uid, *_, enqueued, started, completed in groups
        },
    }
    if collectives:
        entries = _C.flight_records(rank, stacks)
        done = "completed" if active else ""
        trace["entries"] = [entry for entry in entries if entry["state"] != done]
    return trace


def dump(
    includeCollectives: bool | None = None,
    includeStackTraces: bool | None = None,
    onlyActive: bool | None = None,
) -> bytes:
    """Returns the pickled records of this rank: torch._C._distributed_c10d._dump_nccl_trace()."""
    if includeStackTraces is None:
        includeStackTraces = is_set("TORCH_INCLUDE_STACK_TRACE", "1")
    if onlyActive is None:
        onlyActive = is_set("TORCH_INCLUDE_ONLY_ACTIVE")
    trace = _trace(includeCollectives is not False, includeStackTraces, onlyActive, _rank())
    return pickle.dumps(trace, protocol=2)


def dump_json(includeCollectives: bool | None = None, onlyActive: bool | None = None) -> str:
    """Returns the records of this rank without stacks, in JSON."""
    return json.dumps(_trace(includeCollectives is not False, False, bool(onlyActive), _rank()))


def _file_of(rank: int) -> Path | None:
    names = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    prefix = next((os.environ[name] for name in names if os.environ.get(name)), None)
    return None if prefix is None else Path(f"{prefix}{rank}")


def _write(rank: int) -> None:
    file = _file_of(rank)
    if file is None or rank in _written:
        return
    _written.add(rank)
    part = file.with_name(f".{os.getpid()}-{rank}")  # the process may end before this thread does
    part.write_bytes(pickle.dumps(_trace(True, True, False, rank), protocol=2))
    part.replace(file)


def note_failure(rank: int) -> None:
    """Writes a rank's records where TORCH_FR_DUMP_TEMP_FILE says, and asks the others for theirs.

    TORCH_NCCL_DUMP_ON_TIMEOUT=0 switches it off.
    """
    if not is_set("TORCH_NCCL_DUMP_ON_TIMEOUT", "1"):
        return
    _write(rank)
    if rank in _stores:
        _stores.pop(rank).set(_FAILED, "1")


def _watch(store: Store, rank: int) -> None:
    pause = threading.Event()
    while rank in _stores and not pause.wait(_SECONDS):
        try:
            asked = store.check([_FAILED])
        except RuntimeError:  # the store's process has ended
            return
        if asked:
            _write(rank)
            return


def watch(store: Store, rank: int) -> None:
    """Keeps records from now on, and writes this rank's too when another's collective fails.

    Raises:
        ValueError: If TORCH_FR_BUFFER_SIZE is no number.
    """
    _latest[0] = rank
    sizes = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
    size = next((os.environ[name] for name in sizes if name in os.environ), "2000")
    _C.keep_flight_records(max(0, int(size)))
    if _file_of(rank) is None:
        return
    _written.discard(rank)
    _stores[rank] = PrefixStore("npusim/recorder", store)
    threading.Thread(target=_watch, args=(_stores[rank], rank), daemon=True).start()


_C.on_failure(note_failure)
