# SPDX-License-Identifier: BSD-3-Clause
"""Reads of pinned memory that no operator makes: Tensor.tolist(), and the arrays of Tensor.numpy().

An array may be made before a download is waited for and read after it, so it counts as read when
its last reference goes: if nothing was waited for by then, whoever looked at it looked too early.
Downloads that begin after the array was made do not count.
"""

import weakref
from functools import partial, wraps
from typing import Any

import torch

from torch_npusim import _C
from torch_npusim._changes import Changes

_watching = Changes()  # of torch, while arrays are watched
_numpy = torch.Tensor.numpy
_tolist = torch.Tensor.tolist
_arrays: list["weakref.ref[Any]"] = []  # of pinned memory; must live when their arrays go
_room = 64  # of the list, before those that are gone are dropped


def _is_host_tensor(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.layout == torch.strided


@wraps(_numpy)
def _watched_numpy(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    global _room
    array = _numpy(self, *args, **kwargs)
    if _is_host_tensor(self) and self.is_pinned():
        # No Python function: a race is raised where the next one runs, which is the program's.
        is_gone = partial(_C.note_read_of_pinned, self.detach(), _C.newest_record())
        _arrays.append(weakref.ref(array, is_gone))
        if len(_arrays) > _room:
            _arrays[:] = [array for array in _arrays if array() is not None]
            _room = max(64, 2 * len(_arrays))
    return array


@wraps(_tolist)
def _watched_tolist(self: torch.Tensor) -> Any:
    if _is_host_tensor(self):
        _C.note_read_of_pinned(self, 0)
    return _tolist(self)


def watch_arrays(on: bool) -> None:
    """Begins or ends the watch, which replaces two methods of torch.Tensor."""
    _watching.undo()
    if on:
        _watching.set(torch.Tensor, "numpy", _watched_numpy)
        _watching.set(torch.Tensor, "tolist", _watched_tolist)
    else:
        _arrays.clear()
