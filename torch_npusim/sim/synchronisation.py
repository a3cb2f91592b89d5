# SPDX-License-Identifier: BSD-3-Clause
"""Host synchronisations: which lines of a program make the host wait for the device, how often.

On hardware each of them stalls the host until the queue of the device is empty. Beside what
torch.npusim.set_sync_debug_mode() reports this also counts the explicit waits.

    >>> x = torch.ones(3, device="npusim")
    >>> with record() as recorded:
    ...     for _ in range(5):
    ...         total = x.sum().item()
    ...     torch.npusim.synchronize()
    >>> [(sync.what, count) for sync, count in recorded.counts().items()]
    [('aten::_local_scalar_dense', 5), ('synchronize', 1)]

One wait in a program that must have no other:

    >>> torch.npusim.set_sync_debug_mode("error")
    >>> with allow():
    ...     x.sum().item()
    3.0
    >>> torch.npusim.set_sync_debug_mode("default")

The C++ side notes each wait (csrc/runtime/host_sync.h) and calls _observe() while a mode is set or
somebody records. The list of allowed waits travels with torch's thread-local state into the threads
of the autograd engine.
"""

import atexit
import linecache
import os
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from types import FrameType

import torch
from torch import _tensor_str

from torch_npusim import _C, _names
from torch_npusim._blame import file_line, short_path
from torch_npusim._frames import FOREIGN
from torch_npusim._text import format_table

__all__ = ["HostSync", "Recording", "allow", "record", "set_level"]

_TORCH = os.path.dirname(torch.__file__)
_PRINTING = _tensor_str.__file__
_ENGINE = os.path.join(_TORCH, "autograd", "graph.py")
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
            filename=short_path(file),
            lineno=frame.f_lineno,
            module=frame.f_globals.get("__name__"),
            registry=registry,
        )
    return None


def _is_reported(what: str, caller: FrameType | None) -> bool:
    if _level == "hidden":
        return what not in _PAGEABLE and not _is_asked_for(what, caller)
    return _level == "strict" or what not in _PAGEABLE


def _call_site(frame: FrameType | None) -> tuple[FrameType | None, FrameType | None]:
    """Returns the call site and, if torch is printing a tensor there, the frame that prints."""
    printing = None
    if frame is None:
        frame = _frame_in_backward()
    while frame is not None and frame.f_code.co_filename.startswith(FOREIGN):
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


class Recording:
    """The counts of record(); str() of it is a table, most frequent first."""

    def __init__(self) -> None:
        self._counts: dict[HostSync, int] = {}

    def counts(self) -> dict[HostSync, int]:
        """Returns how often each place waited, in the order in which they first did."""
        return dict(self._counts)

    def total(self) -> int:
        """Returns how many waits there were that set_sync_debug_mode() reports."""
        return sum(count for sync, count in self.counts().items() if sync.reported)

    def __str__(self) -> str:
        most = sorted(self.counts().items(), key=lambda entry: -entry[1])
        rows = [
            [
                str(count),
                sync.what if sync.reported else f"({sync.what})",
                file_line(sync.file, sync.line),
                linecache.getline(sync.file, sync.line).strip(),
            ]
            for sync, count in most
        ]
        if not rows:
            return "no host synchronisation"
        return "\n".join(format_table(["count", "what", "where", ""], rows))


@contextmanager
def record() -> Iterator[Recording]:
    """Counts the host synchronisations of all threads within a `with` block.

    Printing a tensor counts once. A wait in a backward pass is attributed to the line that started
    the pass, unless several threads run backward passes at once.
    """
    recording = Recording()
    start_recording(recording._counts)
    try:
        yield recording
    finally:
        stop_recording(recording._counts)


@contextmanager
def allow(*what: str, files: Sequence[str] = ()) -> Iterator[None]:
    """Lets the host wait within a `with` block, on this thread and in its backward passes.

    Args:
        what: Patterns (as in fnmatch) of the waits, such as "aten::_local_scalar_dense" or
            "printing"; none means every wait.
        files: Patterns of the call site's file, such as "*/site-packages/*"; none means any file.
    """
    before = allowances()
    set_allowances((*before, Allowance(what, tuple(files))))
    try:
        yield
    finally:
        set_allowances(before)


# --- In words -----------------------------------------------------------------------------------

_VALUE = (
    ".item(), or bool(), int(), float(), `if` or `in` of a tensor, waits for a value; keep it on "
    "the device, or look at it less often"
)
_CHOSEN = (
    "waits for the number of elements that the mask chooses; torch.where(mask, x, other), or a "
    "product with the mask, needs none"
)
_FACTOR = "waits to learn whether the decomposition succeeded; its _ex form does not"
_SIZE = "waits for values that decide the size of its result"

# By the operator's name without its overload.
_WORDS = {
    "aten::_local_scalar_dense": _VALUE,
    "aten::item": _VALUE,
    "aten::index": f"x[mask], or indices on the host: {_CHOSEN}",
    "aten::_index_put_impl_": f"x[mask] = values, or indices on the host: {_CHOSEN}",
    "aten::masked_select": f"masked_select() {_CHOSEN}",
    "aten::nonzero": "nonzero(), where(mask) or x[mask] "
    "waits for the number of elements; nonzero_static(size=n) does not",
    "aten::_unique2": f"unique() {_SIZE}",
    "aten::unique_dim": f"unique() {_SIZE}",
    "aten::unique_consecutive": f"unique_consecutive() {_SIZE}",
    "aten::repeat_interleave": "repeat_interleave() waits for the sum of the repeats; pass "
    "output_size",
    "aten::bincount": "bincount() waits for the largest value",
    "aten::histc": "histc() without min and max waits for the range of the values",
    "aten::equal": "torch.equal() waits for its answer",
    "aten::linalg_inv_ex": f"linalg.inv() {_FACTOR}",
    "aten::linalg_eig": f"linalg.eig() {_FACTOR}",
    "aten::_linalg_eigh": f"linalg.eigh() {_FACTOR}",
    "aten::_linalg_svd": f"linalg.svd() {_FACTOR}",
    **dict.fromkeys(
        ("aten::_to_sparse", *(f"aten::_to_sparse_{it}" for it in ("csr", "csc", "bsr", "bsc"))),
        "to_sparse() waits for the number of elements that are not zero",
    ),
    "aten::copy_ to the host": ".cpu(), .to('cpu') or .tolist() waits for the values",
    "aten::copy_ to the device": "a copy from the host (.to(device), torch.tensor(..., device=)) "
    "waits; pin_memory() and non_blocking=True do not",
    "aten::copy_ to pageable memory": "non_blocking=True to memory that is not pinned may wait all "
    "the same; copy into a pinned tensor",
    "aten::copy_ from pageable memory": "non_blocking=True from memory that is not pinned may wait "
    "all the same; pin_memory() first",
    "printing": "printing a tensor waits for its values",
    "Stream.synchronize": "Stream.synchronize() waits for the stream",
    "Event.synchronize": "Event.synchronize() waits for the event",
    "synchronize": "synchronize() waits for the device",
}

#: Copies that are not to block: CUDA's mode does not report them, whatever memory they use.
_PAGEABLE = frozenset({"aten::copy_ to pageable memory", "aten::copy_ from pageable memory"})

# Waits that a program asks for in so many words.
_ASKED = frozenset({"aten::copy_ to the host", "Stream.synchronize"})

# Functions of torch that move weights, or whose job it is to look at gradients: file -> names.
# A module may have an _apply() of its own, below which there is only what it is given.
_ASKING = {
    os.path.join(_TORCH, "nn", "modules", "module.py"): frozenset(
        {"_apply", "convert", "<lambda>", "load_state_dict", "_load_from_state_dict"}
    ),
    os.path.join(_TORCH, "utils", "backend_registration.py"): frozenset({"<lambda>"}),
    os.path.join(_TORCH, "amp", "grad_scaler.py"): frozenset(
        {"step", "update", "unscale_", "_maybe_opt_step", "load_state_dict"}
    ),
    os.path.join(_TORCH, "optim", "optimizer.py"): frozenset({"load_state_dict"}),
    os.path.join(_TORCH, "serialization.py"): frozenset({"load", "save"}),
    os.path.join(_TORCH, "_dynamo", "convert_frame.py"): frozenset({"_compile"}),
}


# Functions of any library that load weights. Copies to the device below them were asked for.
_LOADING = frozenset(
    {"from_pretrained", "load_state_dict", "load_checkpoint", "load_checkpoint_and_dispatch"}
)


def in_words(what: str) -> str:
    """Returns what the program does there, why it waits and what would not.

    Patterns of allow() and npusim_sync_allow match the operators' own names instead.
    """
    words = _WORDS.get(what) or _WORDS.get(what.partition(".")[0])
    return f"{words} ({what})" if words is not None else f"{what} waits for values"


def _is_asked_for(what: str, frame: FrameType | None) -> bool:
    """Returns whether the program asked for a wait: by its name, or of torch's functions that load.

    Args:
        what: The function that waits.
        frame: The frame that does. A function of torch's is looked for up to the first frame
            outside torch and this package, one that loads weights among all.
    """
    if what in _ASKED or (what == "aten::copy_ to the device" and _is_loading(frame)):
        return True
    while frame is not None and frame.f_code.co_filename.startswith(FOREIGN):
        if frame.f_code.co_name in _ASKING.get(frame.f_code.co_filename, ()):
            return True
        frame = frame.f_back
    return False


def _is_loading(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name in _LOADING:
            return True
        frame = frame.f_back
    return False
