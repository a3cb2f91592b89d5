# SPDX-License-Identifier: BSD-3-Clause
"""Where the host waits for the device: hears every wait, finds its call site, warns or refuses.

The C++ side notes each wait (csrc/runtime/host_sync.h) and calls _observe() while a mode is set or
somebody records. torch.npusim.set_sync_debug_mode() and torch_npusim.sim.synchronisation stand on
this module; the list of allowed waits travels with torch's thread-local state into the threads of
the autograd engine.
"""

import atexit
import os
import sys
import threading
import warnings
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from types import FrameType

import torch
from torch import _tensor_str

from torch_npusim import _C, _names
from torch_npusim._sync_words import PAGEABLE, in_words, is_asked_for

_FOREIGN = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(__file__) + os.sep)
_PRINTING = _tensor_str.__file__
_ENGINE = os.path.join(os.path.dirname(torch.__file__), "autograd", "graph.py")
_COUNTED = "__npusim_counted__"  # a name that no function of torch has
_ALLOWED = "npusim_allowed_syncs"


@dataclass(frozen=True)
class HostSync:
    """One place where the host waits for the device.

    Attributes:
        what: Operator ("aten::_local_scalar_dense"), copy ("aten::copy_ to the host"), "printing",
            or "synchronize", "Stream.synchronize", "Event.synchronize".
        file: File of the call site: the first Python frame outside torch and torch_npusim.
        line: Its line; 0 if a thread without Python frames waited.
        function: Its function.
        module: Its module; "" without frames.
        reported: Whether the level in force (set_level()) warns of it or refuses it: false if it
            is allowed, and for the explicit waits that torch.cuda does not report either.
    """

    what: str
    file: str
    line: int
    function: str
    module: str
    reported: bool


@dataclass(frozen=True)
class Allowance:
    """Waits that are neither warned of nor refused: those that match a pattern of each kind.

    A pattern of an operation matches its whole name or the operator's: "aten::copy_".
    """

    what: tuple[str, ...]
    files: tuple[str, ...]
    modules: tuple[str, ...] = ()

    def covers(self, sync: HostSync) -> bool:
        """Returns whether a wait is allowed."""
        what = sync.what
        known = _matches(what, self.what) or _matches(what.partition(" ")[0], self.what)
        return known and _matches(sync.file, self.files) and _matches(sync.module, self.modules)


def _matches(text: str, patterns: tuple[str, ...]) -> bool:
    return not patterns or any(fnmatch(text, pattern) for pattern in patterns)


_lock = threading.RLock()  # guards the counts; a destructor may wait while one is being added
_recordings: list[dict[HostSync, int]] = []
_exempt: tuple[Allowance, ...] = ()
_mode = 0

LEVELS = ("cuda", "hidden", "strict")
_level = "cuda"


def set_level(level: str) -> str:
    """Sets which waits set_sync_debug_mode() reports; returns what was set.

    Args:
        level: "cuda", at first: those that torch.cuda's mode reports. "hidden": of these, those
            that the program did not ask for by .cpu(), .tolist() or Stream.synchronize(), and that
            no loading of weights and no step of a gradient scaler makes. "strict": those of "cuda",
            and copies from and to pageable memory with non_blocking=True, which may wait.

    Raises:
        ValueError: For another level.
    """
    global _level
    if level not in LEVELS:
        raise ValueError(f"expected a level of {', '.join(LEVELS)}; got {level!r}")
    before, _level = _level, level
    return before


def mode() -> int:
    """Returns 0 (nothing), 1 (warn) or 2 (refuse)."""
    return _mode


def set_mode(mode: int) -> None:
    """Sets what a wait does: 0, 1 or 2."""
    global _mode
    _mode = mode
    _listen_if_needed()


def start_recording(counts: dict[HostSync, int]) -> None:
    """Adds every wait to `counts`, until stop_recording()."""
    with _lock:
        _recordings.append(counts)
    _listen_if_needed()


def stop_recording(counts: dict[HostSync, int]) -> None:
    """Leaves `counts` as it is from now on."""
    with _lock:
        _recordings[:] = [other for other in _recordings if other is not counts]
    _listen_if_needed()


def set_exempt(exempt: tuple[Allowance, ...]) -> tuple[Allowance, ...]:
    """Sets what is not warned of or refused on any thread, but counts; returns what was set."""
    global _exempt
    before, _exempt = _exempt, exempt
    return before


def allowances() -> tuple[Allowance, ...]:
    """Returns what is allowed on this thread."""
    if not torch._C._is_key_in_tls(_ALLOWED):
        return ()
    allowed: tuple[Allowance, ...] = torch._C._get_obj_in_tls(_ALLOWED)
    return allowed


def set_allowances(allowed: tuple[Allowance, ...]) -> None:
    """Sets what is allowed on this thread, and in the backward passes that it starts."""
    torch._C._stash_obj_in_tls(_ALLOWED, allowed)


def _listen_if_needed() -> None:
    _C.set_sync_observer(_observe if _mode != 0 or _recordings else None)


atexit.register(_C.set_sync_observer, None)  # nobody calls Python once it is going


def _observe(what: str, hidden: bool) -> str | None:
    """Called where the host is about to wait; returns why it must not."""
    caller = sys._getframe().f_back
    frame, printing = _call_site(caller)
    if printing is not None:
        # A printed tensor waits for dozens of scalars. The note that it was counted lives and dies
        # with the frame that prints.
        if printing.f_locals.setdefault(_COUNTED, False):
            return None
        printing.f_locals[_COUNTED] = True
        what = "printing"
    file = "<no Python frame>" if frame is None else frame.f_code.co_filename
    sync = HostSync(
        what,
        file,
        0 if frame is None else frame.f_lineno,
        "" if frame is None else frame.f_code.co_name,
        "" if frame is None else str(frame.f_globals.get("__name__", "")),
        hidden and _is_reported(what, caller),
    )
    if sync.reported and any(allowance.covers(sync) for allowance in allowances()):
        sync = replace(sync, reported=False)
    with _lock:
        for counts in _recordings:
            counts[sync] = counts.get(sync, 0) + 1
    if not sync.reported or _mode == 0 or any(exempt.covers(sync) for exempt in _exempt):
        return None
    device = "CUDA" if _names.device_type() == "cuda" else "npusim"
    message = f"called a synchronizing {device} operation: {in_words(what)}"
    if _mode == 2:
        return message
    if frame is None:
        warnings.warn(message, UserWarning, stacklevel=1)
    else:
        registry = frame.f_globals.setdefault("__warningregistry__", {})
        warnings.warn_explicit(
            message,
            UserWarning,
            filename=file,
            lineno=frame.f_lineno,
            module=frame.f_globals.get("__name__"),
            registry=registry,
        )
    return None


def _is_reported(what: str, caller: FrameType | None) -> bool:
    if _level == "hidden":
        return what not in PAGEABLE and not is_asked_for(what, caller)
    return _level == "strict" or what not in PAGEABLE


def _call_site(frame: FrameType | None) -> tuple[FrameType | None, FrameType | None]:
    """Returns the call site and, if torch is printing a tensor there, the frame that prints."""
    printing = None
    if frame is None:
        frame = _frame_in_backward()
    while frame is not None and frame.f_code.co_filename.startswith(_FOREIGN):
        if frame.f_code.co_filename == _PRINTING:
            printing = frame
        frame = frame.f_back
    return frame, printing


def _frame_in_backward() -> FrameType | None:
    """Returns the frame that started the backward pass of this thread of the engine.

    The engine does not tell. While its threads work, the one that started them stands still in
    torch.autograd.graph; if several do, it cannot be known which of them it was.
    """
    waiting = [
        frame
        for frame in sys._current_frames().values()
        if frame.f_code.co_filename == _ENGINE and frame.f_code.co_name == "_engine_run_backward"
    ]
    return waiting[0] if len(waiting) == 1 else None
