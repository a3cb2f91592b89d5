# SPDX-License-Identifier: BSD-3-Clause
"""Imported by workers (`--import wrong_operators`): makes operators of the database misbehave.

PLANTED="crash:add,hang:sub" names what and where. PLANTED_DEVICE is a module to import first. What
happens only once leaves a file in the directory PLANTED_MARKS.
"""

import ctypes
import importlib
import os
import sys
import time
from pathlib import Path

import torch

from npusim_conformance.backend import census
from npusim_conformance.inputs import torch_testing

library = torch.library.Library("aten", "IMPL")
seen: list[bool] = []
CALLS: list[bool] = []


def crash(result):
    ctypes.string_at(0)


def hang(result):
    while True:
        pass


def shy(x):
    """lgamma(), which crashes where nobody looks at the call."""
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_name != "__torch_dispatch__":
        frame = frame.f_back
    if frame is None:
        ctypes.string_at(0)
    return x.cpu().lgamma().to(x.device)


def compiled(result):
    """Takes three seconds when it is first called in a process."""
    if not seen:
        seen.append(True)
        time.sleep(3)
    return result


def leave(result):
    os._exit(7)


def helped_crash(result):
    """Crashes, and leaves a helper that holds every pipe of the process open."""
    if os.fork() == 0:
        Path(os.environ["PLANTED_MARKS"], "helper").write_text(str(os.getpid()))
        time.sleep(600)
    ctypes.string_at(0)


def devour(result):
    """Takes memory without end."""
    kept = []
    while True:
        kept.append(bytes(1 << 26).replace(b"\0", b"x"))
        time.sleep(0.01)


def stay(result):
    """Hangs, and says so."""
    Path(os.environ["PLANTED_MARKS"], "staying").touch()
    time.sleep(600)


class _Late:
    def __del__(self):
        ctypes.string_at(0)


def late(result):
    """What it leaves crashes when it is collected."""
    ring = [_Late()]
    ring.append(ring)
    return result


def wrong(result):
    return result if result.device.type == "cpu" else result + 1


def copies_a_view(result):
    """Copies a conj view as a backend in the trap of _copy_from does, which dies of it."""
    if result.device.type != "cpu":
        view = result.cfloat().conj()
        torch.ops.aten._copy_from(view, torch.empty(view.shape, dtype=view.dtype))
    return result


def in_the_trap_of_copies():
    library.impl("_copy_from", lambda *args: crash(args), "Conjugate")
    trap = census.Trap("aten::_copy_from at Conjugate", True, "register a fallthrough")
    census.open_traps = lambda device: [trap]


def wrong_later(result):
    """Wrong from its third call on a device, in each process."""
    CALLS.append(result.device.type != "cpu")
    return result + 1 if sum(CALLS) > 2 and CALLS[-1] else result


def wrong_once(result):
    mark = Path(os.environ["PLANTED_MARKS"], "wrong_once")
    if mark.exists() or result.device.type == "cpu":
        return result
    mark.touch()
    return result + 1


def refuse(result):
    """Raises on every device, the CPU too."""
    raise RuntimeError("refused")


def plant_kernel(overload, kernel):
    """A kernel that crashes."""
    library.impl(overload, kernel, "PrivateUse1")


def plant(behaviour, operator):
    right = operator.op
    operator.op = lambda *args, **kwargs: globals()[behaviour](right(*args, **kwargs))


if os.environ.get("PLANTED_IMPORT") == "hangs":
    Path(os.environ["PLANTED_MARKS"], "importing").touch()
    time.sleep(600)
if os.environ.get("PLANTED_DEVICE"):
    importlib.import_module(os.environ["PLANTED_DEVICE"])
for entry in filter(None, os.environ.get("PLANTED", "").split(",")):
    what, _, where = entry.partition(":")
    if what.startswith("kernel"):
        plant_kernel(where, shy if what == "kernel_shy" else crash)
    else:
        plant(what, torch_testing.operators()[where])
    if what == "copies_a_view":
        in_the_trap_of_copies()
