# SPDX-License-Identifier: BSD-3-Clause
"""Device tensors in several processes: what torch.multiprocessing's pickler does with them.

torch sends a tensor as its storage and a view of it, unless the storage is CUDA's, so a reducer for
storages is nearly everything. docs/use/sharing.md says what a user may rely on.
"""

import functools
import multiprocessing.queues
import os
import threading
import warnings
from collections.abc import Callable
from importlib import import_module
from multiprocessing.reduction import ForkingPickler
from multiprocessing.util import Finalize
from typing import Any, NoReturn

import torch
from torch.utils.hooks import warn_if_has_hooks

from torch_npusim import _C, patches
from torch_npusim._names import is_npusim

Reduced = tuple[Callable[..., Any], tuple[Any, ...]]
Message = tuple[int, ...]

reductions: Any = import_module("torch.multiprocessing.reductions")  # without types

# Held while a message is turned into a storage: two threads must not make two of one block.
_receiving = threading.RLock()


def register() -> None:
    """Adds the device to the reducers of torch.multiprocessing."""
    # init_reductions(), which may be called again, finds the patched ones in the module.
    ours: dict[Any, Callable[[Any], Reduced]] = {
        patches.original(f"torch.multiprocessing.reductions:{name}"): getattr(reductions, name)
        for name in ("reduce_storage", "reduce_tensor")
    }
    for kind, reducer in list(ForkingPickler._extra_reducers.items()):  # type: ignore[attr-defined]
        if reducer in ours:
            ForkingPickler.register(kind, ours[reducer])
    ForkingPickler.register(torch.Event, _reduce_event)
    # Before anything is sent: what a queue's thread registers while the process ends is not called.
    _speak_at_the_end()


def tensors(original: Callable[[torch.Tensor], Reduced]) -> Callable[[torch.Tensor], Reduced]:
    """torch asks a storage whose device is called "cuda" for a handle of CUDA."""

    @functools.wraps(original)
    def reduce_tensor(tensor: torch.Tensor) -> Reduced:
        if not is_npusim(tensor.device) or tensor.layout != torch.strided or tensor.is_nested:
            return original(tensor)
        if tensor.requires_grad and not tensor.is_leaf:
            return _refuse(
                RuntimeError(
                    "Cowardly refusing to serialize non-leaf tensor which requires_grad, since "
                    "autograd does not support crossing process boundaries. If you just want to "
                    "transfer the data, call detach() on the tensor before serializing (e.g., "
                    "putting it on the queue)."
                )
            )
        warn_if_has_hooks(tensor)
        view = (tensor.storage_offset(), tensor.size(), tensor.stride(), tensor.requires_grad)
        storage = tensor._typed_storage()  # type: ignore[no-untyped-call]
        return reductions.rebuild_tensor, (type(tensor), storage, view)

    return reduce_tensor


def storages(
    original: Callable[[torch.UntypedStorage], Reduced],
) -> Callable[[torch.UntypedStorage], Reduced]:
    """torch sends storages of the host and of CUDA only."""

    @functools.wraps(original)
    def reduce_storage(storage: torch.UntypedStorage) -> Reduced:
        if not is_npusim(storage.device):
            return original(storage)
        if storage.size() == 0:
            return _rebuild_empty, (storage.device.index,)
        try:
            message = _C.send_storage(storage)
        except RuntimeError as error:
            return _refuse(error)
        reductions.shared_cache[_name(message)] = reductions.StorageWeakRef(storage)
        _speak_at_the_end_of(os.getpid())
        return _rebuild, (message, storage.size())

    return reduce_storage


def _rebuild_empty(device: int) -> torch.UntypedStorage:
    on = torch.device("npusim", device)
    return torch.UntypedStorage(0, device=on)  # type: ignore[no-untyped-call]


def _rebuild(message: Message, size: int) -> torch.UntypedStorage:
    """The storage that was sent: the same object as long as this process has it."""
    if _C.is_in_bad_fork():  # where a lock of the parent may be held for ever
        return _C.receive_storage(message, size)  # raises
    with _receiving:
        storage: torch.UntypedStorage | None
        storage = reductions.storage_from_cache(torch.UntypedStorage, _name(message))
        if storage is not None:
            _C.acknowledge_storage(message)
            return storage
        storage = _C.receive_storage(message, size)
        reductions.shared_cache[_name(message)] = reductions.StorageWeakRef(storage)
        return storage


def _name(message: Message) -> tuple[str, int, int, int]:
    """Identity of a block in all processes: its file, its place there."""
    _, _, file_device, file_id, _, offset, *_ = message
    return ("npusim", file_device, file_id, offset)


def _reduce_event(event: torch.Event) -> Reduced:
    if not is_npusim(event.device):
        return event.__reduce_ex__(2)  # type: ignore[return-value]
    return _refuse(
        NotImplementedError(
            "sending an event on npusim to another process: each process has a virtual clock of "
            "its own, so the event means nothing there. A tensor that is sent needs no event."
        )
    )


def _refuse(error: Exception) -> Reduced:
    """Raises, or sends the error: what the thread of a Queue raises reaches nobody."""
    if multiprocessing.queues.Queue._on_queue_feeder_error in getattr(  # type: ignore[attr-defined]
        threading.current_thread(), "_args", ()
    ):
        return _raise, (error,)
    raise error


def _raise(error: Exception) -> NoReturn:
    raise error


def _speak_at_the_end() -> None:
    Finalize(None, _say_what_others_hold, exitpriority=-10)  # the threads of queues join at -5


@functools.cache
def _speak_at_the_end_of(process: int) -> None:
    """Once more: a child of multiprocessing forgets what was registered before its target."""
    _speak_at_the_end()


@functools.cache
def _ends(process: int) -> None:
    """The warning of torch.cuda, where the receivers then lose their tensors."""
    if not _C.is_in_bad_fork() and (held := _C.held_by_others()) > 0:
        warnings.warn(
            f"this process ends while other processes have, or have yet to receive, {held} "
            f"block(s) of its device memory. On CUDA they lose them: keep the producer until all "
            f"consumers are done",
            RuntimeWarning,
            stacklevel=1,
        )


def _say_what_others_hold() -> None:
    _ends(os.getpid())
