# SPDX-License-Identifier: BSD-3-Clause
"""Device tensors in several processes: what torch.multiprocessing's pickler does with them.

torch sends a tensor as its storage and a view of it, unless the storage is CUDA's, so a reducer for
storages is nearly everything. docs/sharing.md says what a user may rely on. Upstream: the request
for inter-process hooks, pytorch/pytorch 192099. Goes when such hooks exist.
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

from torch_npusim import _C
from torch_npusim._names import is_npusim

Reduced = tuple[Callable[..., Any], tuple[Any, ...]]
Message = tuple[int, ...]

reductions: Any = import_module("torch.multiprocessing.reductions")  # without types

ORIGINAL_REDUCE_STORAGE: Callable[[torch.UntypedStorage], Reduced] = reductions.reduce_storage
ORIGINAL_REDUCE_TENSOR: Callable[[torch.Tensor], Reduced] = reductions.reduce_tensor

# Held while a message is turned into a storage: two threads must not make two of one block.
_receiving = threading.RLock()


def register() -> None:
    """Adds the device to the reducers of torch.multiprocessing."""
    functools.update_wrapper(reduce_storage, ORIGINAL_REDUCE_STORAGE)
    functools.update_wrapper(reduce_tensor, ORIGINAL_REDUCE_TENSOR)
    reductions.reduce_storage = reduce_storage  # for init_reductions(), which may be called again
    reductions.reduce_tensor = reduce_tensor
    ours: dict[Any, Callable[[Any], Reduced]] = {
        ORIGINAL_REDUCE_STORAGE: reduce_storage,
        ORIGINAL_REDUCE_TENSOR: reduce_tensor,
    }
    for kind, reducer in list(ForkingPickler._extra_reducers.items()):  # type: ignore[attr-defined]
        if reducer in ours:
            ForkingPickler.register(kind, ours[reducer])
    ForkingPickler.register(torch.Event, _reduce_event)
    # Before anything is sent: what a queue's thread registers while the process ends is not called.
    _speak_at_the_end()


def reduce_tensor(tensor: torch.Tensor) -> Reduced:
    """As torch's, which asks a storage whose device is called "cuda" for a handle of CUDA."""
    if not is_npusim(tensor.device) or tensor.layout != torch.strided or tensor.is_nested:
        return ORIGINAL_REDUCE_TENSOR(tensor)
    if tensor.requires_grad and not tensor.is_leaf:
        return _refuse(
            RuntimeError(
                "Cowardly refusing to serialize non-leaf tensor which requires_grad, since "
                "autograd does not support crossing process boundaries. If you just want to "
                "transfer the data, call detach() on the tensor before serializing (e.g., putting "
                "it on the queue)."
            )
        )
    warn_if_has_hooks(tensor)
    view = (tensor.storage_offset(), tensor.size(), tensor.stride(), tensor.requires_grad)
    storage = tensor._typed_storage()  # type: ignore[no-untyped-call]
    return reductions.rebuild_tensor, (type(tensor), storage, view)


def reduce_storage(storage: torch.UntypedStorage) -> Reduced:
    """As torch's, for storages of the device too."""
    if not is_npusim(storage.device):
        return ORIGINAL_REDUCE_STORAGE(storage)
    if storage.size() == 0:
        return _rebuild_empty, (storage.device.index,)
    try:
        message = _C.send_storage(storage)
    except RuntimeError as error:
        return _refuse(error)
    reductions.shared_cache[_name(message)] = reductions.StorageWeakRef(storage)
    _speak_at_the_end_of(os.getpid())
    return _rebuild, (message, storage.size())


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
    """What tells a block from every other one, in all processes: its file, its place there."""
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
