# SPDX-License-Identifier: BSD-3-Clause
"""The lab's file format (docs/reference/trace_format.md): a zip, one array per column."""

from __future__ import annotations

import errno
import json
import os
import zipfile
from collections.abc import Iterator
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from npusim_lab.trace import COLUMNS, OPTIONAL, Stack, Trace, TraceError, regular_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORMAT = "npusim-trace"
VERSION = 1
_STAMP = (1980, 1, 1, 0, 0, 0)  # so that equal traces are equal files
_LEAST_LIMIT = 96 << 20  # bytes of memory that any file may take
_TIMES_OF_FILE = 64  # what a larger one may
_TIMES_OF_HEAD = 30  # what text of JSON takes as lists, at most
_HEADER_BYTES = 256  # of an array, at most
_PIECE = 1 << 14  # events written at once
_MOST_SAID = 200  # characters of another library's error
_DIFFERENCES = ("id", "time_ns")  # kept as differences to the event before, modulo 2**64


def write_trace(trace: Trace, path: str | PathLike[str]) -> None:
    """Write a trace; equal traces give equal files.

    Raises:
        OSError: If the file cannot be written.
    """
    frames: dict[object, int] = {}
    stacks = [[frames.setdefault(f, len(frames)) for f in stack] for stack in trace.stacks]
    present = [name for name in COLUMNS if getattr(trace, name) is not None]
    head = {
        "format": FORMAT,
        "version": VERSION,
        "events": len(trace),
        "columns": present,
        "frames": list(frames),
        "stacks": stacks,
        "info": dict(trace.info),
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        text = json.dumps(head, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
        archive.writestr(_member("head.json"), text)
        for name in present:
            column = getattr(trace, name)
            kind = _narrowest(name, column)
            shape = {"descr": kind.str, "fortran_order": False, "shape": column.shape}
            member = _member(f"{name}.npy")
            member.file_size = _HEADER_BYTES + column.size * kind.itemsize
            with archive.open(member, "w") as file:
                np.lib.format.write_array_header_1_0(file, shape)
                for piece in _pieces(name, column):
                    file.write(piece.astype(kind).tobytes())


def read_trace(path: str | PathLike[str], limit_bytes: int | None = None) -> Trace:
    """Read a trace and check it.

    Args:
        path: of the file.
        limit_bytes: the most memory that it may take; by default 96 MiB or 64 times the file,
            whichever is more.

    Raises:
        TraceError: If the file is none, is of a later version, would take more than the limit, or
            holds events that cannot be.
        OSError: If it cannot be read.
    """
    try:
        with zipfile.ZipFile(regular_file(path)) as archive:
            _check_members(archive, path, limit_bytes)
            head = json.loads(archive.read("head.json"))
            _check_head(head, path)
            members = {name.removesuffix(".npy") for name in archive.namelist()} - {"head.json"}
            if members != set(head["columns"]):
                raise ValueError(f"its members are {sorted(members)}, not what the head says")
            columns = {
                name: _column(archive, name, head["events"]) for name in COLUMNS if name in members
            }
        frames = [_frame(frame) for frame in head["frames"]]
        stacks: tuple[Stack, ...] = tuple(_stack(frames, numbers) for numbers in head["stacks"])
        info: dict[str, Any] = head["info"]
        missing = [name for name in COLUMNS if name not in columns and name not in OPTIONAL]
        if missing or not stacks or not isinstance(info, dict):
            raise ValueError(f"columns {missing} are missing" if missing else "the head is damaged")
        return Trace(**columns, stacks=stacks, info=info).validate()
    except TraceError as problem:
        text = str(problem)
        raise TraceError(text if text.startswith(str(path)) else f"{path}: {text}") from None
    except Exception as problem:  # whatever a damaged file makes of the readers above
        damaged = (None, errno.EINVAL)  # of a decompressor, of a bad seek
        if isinstance(problem, OSError) and problem.errno not in damaged:
            raise
        text = str(problem)[:_MOST_SAID]  # some quote the file
        raise TraceError(f"{path}: not a trace of npusim-lab: {text}") from None


def _member(name: str) -> zipfile.ZipInfo:
    member = zipfile.ZipInfo(name, _STAMP)
    member.compress_type = zipfile.ZIP_DEFLATED
    member.external_attr = 0o644 << 16
    return member


def _pieces(name: str, column: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield a column as it is kept, in pieces: a whole one beside the trace takes memory."""
    for begin in range(0, len(column), _PIECE):
        piece = column[begin : begin + _PIECE]
        if name in _DIFFERENCES:
            before = column[begin - 1 : begin] if begin else np.zeros(1, np.uint64)
            piece = np.diff(piece, prepend=before).view(np.int64)
        yield piece


def _narrowest(name: str, column: NDArray[Any]) -> np.dtype[Any]:
    """Return the narrowest type that holds a column as it is kept."""
    if name in _DIFFERENCES and len(column):
        wide = max(max(int(one.max()), -1 - int(one.min())) for one in _pieces(name, column))
        kinds = (np.int8, np.int16, np.int32, np.int64)
        return np.dtype(next(t for t in kinds if wide <= np.iinfo(t).max))
    return np.min_scalar_type(int(column.max(initial=0)))


def _check_members(
    archive: zipfile.ZipFile, path: str | PathLike[str], limit_bytes: int | None
) -> None:
    """Refuse members that are none, and what would not fit, by the sizes that the archive names.

    More than those is never unpacked.
    """
    names = archive.namelist()
    known = {"head.json", *(f"{name}.npy" for name in COLUMNS)}
    strange = [name for name in names if name not in known or names.count(name) > 1]
    if strange:
        raise ValueError(f"member {strange[0][:40]!r} is none, or is there twice")
    sizes = {member.filename: member.file_size for member in archive.infolist()}
    head = sizes.pop("head.json", 0)
    # Every member has a byte or more for each event; the widest is there twice while it is read.
    events, widest = min(sizes.values(), default=0), max(sizes.values(), default=0)
    row = sum(np.dtype(COLUMNS[name.removesuffix(".npy")]).itemsize for name in sizes)
    needed = _TIMES_OF_HEAD * head + row * events + widest
    limit = limit_bytes or max(_LEAST_LIMIT, _TIMES_OF_FILE * os.path.getsize(path))
    if needed > limit:
        raise TraceError(
            f"{path}: takes up to {needed >> 20} MiB, more than the limit of {limit >> 20} MiB; "
            f"raise it (--limit) if you trust the file"
        )


def _frame(frame: Any) -> tuple[str, int, str]:
    match frame:
        case [str(file), int(line), str(name)] if not isinstance(line, bool):
            return file, line, name
    raise ValueError(f"frame {str(frame)[:60]}; expected a file, a line and a function")


def _stack(frames: list[tuple[str, int, str]], numbers: Any) -> Stack:
    if not isinstance(numbers, list):
        raise ValueError(f"stack {str(numbers)[:60]}; expected a list")
    for number in numbers:
        if type(number) is not int or not 0 <= number < len(frames):
            raise ValueError(f"a stack has frame {str(number)[:40]}; there are {len(frames)}")
    return tuple(frames[number] for number in numbers)


def _check_head(head: Any, path: str | PathLike[str]) -> None:
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise TraceError(f"{path}: not a trace of npusim-lab: its head names another format")
    if head.get("version") != VERSION:
        raise TraceError(
            f"{path}: version {head.get('version')} of the format; this npusim-lab reads "
            f"{VERSION}: write the trace again, or use the npusim-lab that wrote it"
        )
    unknown = [name for name in head["columns"] if name not in COLUMNS]
    if unknown:
        raise TraceError(f"{path}: columns {str(unknown)[:60]} are none of version {VERSION}")
    if type(head["events"]) is not int or head["events"] < 0:
        raise TraceError(f"{path}: {str(head['events'])[:40]} events; expected a number")


def _column(archive: zipfile.ZipFile, name: str, events: int) -> NDArray[Any]:
    with archive.open(f"{name}.npy") as member:
        version = np.lib.format.read_magic(member)
        if version != (1, 0):
            raise ValueError(f"column {name} is an array of version {version}")
        shape, _, dtype = np.lib.format.read_array_header_1_0(member)
        if shape != (events,) or dtype.kind not in "iu":
            raise ValueError(f"column {name} is {dtype} of shape {shape}, not {events} integers")
        raw = np.frombuffer(member.read(events * dtype.itemsize), dtype)
        if member.read(1):
            raise ValueError(f"column {name} goes on behind {events} events")
    if len(raw) != events:
        raise ValueError(f"column {name} ends after {len(raw)} of {events} events")
    if name in _DIFFERENCES:
        return np.cumsum(raw.astype(np.int64)).view(np.uint64)
    if raw.min(initial=0) < 0 or int(raw.max(initial=0)) >> (8 * np.dtype(COLUMNS[name]).itemsize):
        raise ValueError(f"column {name} has values outside {np.dtype(COLUMNS[name])}")
    return raw.astype(COLUMNS[name])
