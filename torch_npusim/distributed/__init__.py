# SPDX-License-Identifier: BSD-3-Clause
"""simccl: what torch.distributed does on npusim. Loaded when the first process group is made.

    torch.distributed.init_process_group()           # or "simccl", or "cpu:gloo,npusim:simccl"
    torch.distributed.all_reduce(torch.ones(3, device="npusim"))

docs/use/distributed.md says what is moved, what it costs and where the limits are.

Code enters if torch.distributed asks for it in Python; transport and order are csrc/distributed/.
"""

import contextlib
import os
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed import ProcessGroupGloo
from torch.distributed import distributed_c10d as c10d
from torch.distributed.distributed_c10d import PrefixStore, Store

from torch_npusim import _C
from torch_npusim.distributed import _recorder

__all__ = ["Simccl", "create_backend", "create_uniform"]

#: Gloo's own limit is a little later than ours, which knows what to say.
_GRACE = timedelta(seconds=2)

_types: Any = SimpleNamespace()
_C.define_simccl(_types, os.path.dirname(torch.__file__) + os.sep)

#: The class of the backends, and that of what torch copies for the parts of a group.
Simccl: Any = _types.Simccl
SimcclOptions: Any = _types.Options


def create_backend(
    store: Store,
    rank: int,
    size: int,
    timeout: timedelta,
    name: str,
    ranks: list[int],
    label: str = "simccl",
) -> Any:
    """Returns the backend of a process group; every member calls it.

    Args:
        store: Of the group alone.
        rank: Of this process in the group.
        size: Number of members.
        timeout: Limit of a collective.
        name: As messages call the group.
        ranks: The members' ranks in the whole job; empty: all.
        label: The backend's name in profiles.

    Raises:
        RuntimeError: If the members are not processes of one host.
    """
    in_threads = type(c10d._world).__name__ == "ThreadLocalWorld"  # testing.run_ranks()
    if not ranks:
        (_C.set_thread_rank if in_threads else _C.set_rank)(rank)
    # torchrun starts ranks again with the store of those that failed, and their keys in it. A
    # program may give one store to a group and, when that is destroyed, to another.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    count = f"attempt {attempt} of {rank}"
    store, whole = PrefixStore(f"attempt {attempt}, {store.add(count, 1)}", store), store
    try:
        words = _types.meet(store, rank, size)
        if in_threads:
            transport = _types.ThreadRanks(store, rank, size, timeout)
        else:
            transport = _gloo(store, rank, size, timeout)
    except RuntimeError:
        with contextlib.suppress(RuntimeError):  # of a store that is gone
            whole.add(count, -1)  # those that come late meet this rank at its next attempt
        raise
    world = _world() if ranks else None
    if not ranks:
        _recorder.watch(store, rank)
    made = Simccl(transport, words, world, rank, ranks or list(range(size)), name, timeout, label)
    if _recorder.is_set("TORCH_NCCL_ENABLE_TIMING"):
        made._enable_collectives_timing()
    return made


def _gloo(store: Store, rank: int, size: int, timeout: timedelta) -> Any:
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [ProcessGroupGloo.create_default_device()]
    options._timeout = timeout + _GRACE
    options._threads = 1  # it then keeps the order in which it is given work
    made = ProcessGroupGloo(store, rank, size, options)
    # A rank that destroys the group at once would break connections that others still wait for.
    if store.add("connected", 1) == size:
        store.set("all connected", "")
    store.wait(["all connected"], timeout)
    return made


def create_uniform(rank: int, size: int, timeout: timedelta, name: str, ranks: list[int]) -> Any:
    """Returns the backend of a group of which this process is the only one, for any size.

    The other ranks are taken to be like this one: sums are multiples, what is gathered is repeated.
    It takes what the fabric says.

    Args:
        rank: Of this process in the group.
        size: Number of members.
        timeout: Limit of a collective.
        name: As messages call the group.
        ranks: The members' ranks in the whole job; empty: all.
    """
    if not ranks:
        _C.set_rank(rank)
    members = ranks or list(range(size))
    alike = _types.UniformRanks(rank, size)
    return Simccl(alike, None, None, rank, members, name, timeout, "uniform")


_C.on_split(create_backend)


def _world() -> Any:
    """Returns simccl's part of the default group, or None."""
    try:
        backend = c10d._get_default_group()._get_backend(torch.device("npusim"))
    except (RuntimeError, ValueError):
        return None
    return backend if isinstance(backend, Simccl) else None
