# SPDX-License-Identifier: BSD-3-Clause
"""Traces in other tools' text: RMM's log, the CSV of MiniMalloc and idealloc, STAlloc's text.

All of them name the line that cannot be read. Times that run backwards between threads are held.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from os import PathLike
from pathlib import Path

import numpy as np

from npusim_lab.planning import Buffers
from npusim_lab.trace import Op, Trace, TraceBuilder, TraceError, regular_file

Source = str | PathLike[str]
_RMM_HEADER = ["Thread", "Time", "Action", "Pointer", "Size", "Stream"]
_DSA_HEADER = ["id", "lower", "upper", "size"]
_DSA_MORE = ["alignment", "gaps", "offset"]
_LONGEST = 10_000  # bytes of a line
_NUMBER = re.compile(r"-?[0-9]{1,20}|0[xX][0-9a-fA-F]{1,16}")
_TIME = re.compile(r"([0-9]{1,5}):([0-9]{2}):([0-9]{2})[:.]([0-9]{1,6})")
_NO_CAUSE = "unpaired: its allocation is not in the file"


def read_rmm(path: Source) -> Trace:
    """Read the log of RMM's logging adaptor: Thread,Time,Action,Pointer,Size,Stream.

    Raises:
        TraceError: Naming the line that cannot be, and why.
        OSError: If the file cannot be read.
    """
    out, live, streams = TraceBuilder(), dict[int, tuple[int, int]](), {0: 0}
    clock = empty = 0
    for line, row in _rows(path, _RMM_HEADER):
        action, size = row["Action"].strip(), _int(line, row["Size"])
        address = _int(line, row["Pointer"])
        stream = streams.setdefault(_int(line, row["Stream"]), len(streams))
        clock = max(clock, _clock(line, row["Time"]))
        if action not in ("allocate", "free", "allocate failure"):
            raise TraceError(
                f"line {line}: action {action[:40]!r}; expected allocate, free or allocate failure"
            )
        if action == "allocate failure":
            out.add(Op.OOM, bytes=size, stream=stream, time_ns=clock)
        elif size == 0:
            empty += 1
        elif action == "allocate":
            if address in live:
                raise TraceError(f"line {line}: allocate at {address:#x}, which is in use")
            live[address] = out.malloc(size, stream, time_ns=clock, address=address), size
        else:
            if address not in live:
                raise TraceError(f"line {line}: free of {address:#x}, {_NO_CAUSE}")
            id, allocated = live.pop(address)
            if size != allocated:
                raise TraceError(
                    f"line {line}: free of {size} bytes at {address:#x}, allocated as {allocated}"
                )
            out.add(Op.FREE, id, time_ns=clock)
    return out.build({"source": "RMM log", "streams": list(streams), **_left_out(empty)})


def write_rmm(trace: Trace, path: Source) -> None:
    """Write a trace as a log of RMM; addresses are the recorded ones, else a bump pointer's."""
    base = 1 << 40
    where: dict[int, tuple[int, int, int]] = {}
    time = trace.time_ns if trace.time_ns is not None else np.arange(len(trace), dtype=np.uint64)
    with Path(path).open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_RMM_HEADER)
        for event, op in enumerate(trace.op.tolist()):
            id = int(trace.id[event])
            if op == Op.MALLOC:
                address = int(trace.address[event]) if trace.address is not None else 0
                if address == 0:
                    address, base = base, base + -(-int(trace.bytes[event]) // 256) * 256
                where[id] = (address, int(trace.bytes[event]), int(trace.stream[event]))
                action = "allocate"
            elif op in (Op.FREE, Op.FREE_REQUESTED):
                action = "free"
            elif op == Op.OOM:
                where[id] = (0, int(trace.bytes[event]), int(trace.stream[event]))
                action = "allocate failure"
            else:
                continue
            address, size, stream = where.pop(id) if action != "allocate" else where[id]
            writer.writerow([1, _time_text(int(time[event])), action, hex(address), size, stream])


def read_buffers(path: Source) -> Buffers:
    """Read MiniMalloc's CSV: id,lower,upper,size, perhaps alignment and gaps ("7-8 9-10").

    Lifetimes are [lower, upper). A column offset is not read.

    Raises:
        TraceError: Naming the line that cannot be, and why.
        OSError: If the file cannot be read.
    """
    lines: dict[str, int] = {}  # by id
    rows: list[tuple[int, int, int, int]] = []
    gaps: list[tuple[int, int, int]] = []
    for line, row in _rows(path, _DSA_HEADER, _DSA_MORE):
        lower, upper = (_int(line, row[name], -(2**62)) for name in ("lower", "upper"))
        size = _int(line, row["size"])
        if upper <= lower or size == 0:
            raise TraceError(
                f"line {line}: lower {lower}, upper {upper}, size {size}; expected lower < upper "
                f"and a size of at least 1"
            )
        name = row["id"].strip()
        before = lines.setdefault(name, line)
        if before != line:
            raise TraceError(f"line {line}: id {name[:40]!r} is that of line {before}")
        alignment = _int(line, row.get("alignment", "").strip() or "1")
        if not 1 <= alignment <= 1 << 31:
            raise TraceError(f"line {line}: alignment {alignment}; expected 1 to 2^31")
        last = lower
        for begin, end in _gaps(line, row.get("gaps", "")):
            if not last <= begin < end <= upper:
                raise TraceError(
                    f"line {line}: the gap {begin}-{end}; expected gaps in order within {lower} "
                    f"to {upper}"
                )
            gaps.append((len(rows), begin, end))
            last = end
        rows.append((lower, upper, size, alignment))
    columns = np.array(rows, np.int64).reshape(-1, 4)
    lower_column, upper_column, sizes, alignments = (columns[:, i].copy() for i in range(4))
    return Buffers(
        list(lines),
        lower_column,
        upper_column,
        sizes.astype(np.uint64),
        alignments.astype(np.uint64),
        tuple(gaps),
    )


def write_buffers(trace: Trace, path: Source) -> None:
    """Write every malloc as id,lower,upper,size, in events; upper is the end of a live block."""
    compiled = trace.compiled
    columns = zip(
        compiled.malloc_event.tolist(),
        compiled.completed_event.tolist(),
        compiled.malloc_bytes.tolist(),
        strict=True,
    )
    with Path(path).open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_DSA_HEADER)
        for number, (lower, upper, size) in enumerate(columns):
            writer.writerow([number, lower, upper, size])


def read_stalloc(path: Source) -> Trace:
    """Read STAlloc's text: `1 pointer size stream` is a malloc, `0 pointer ...` a free.

    Raises:
        TraceError: Naming the line that cannot be, and why.
        OSError: If the file cannot be read.
    """
    out, live, streams, empty = TraceBuilder(), dict[int, int](), {0: 0}, 0
    for line, text in enumerate(_lines(path), 1):
        words = text.split()
        if not words:
            continue
        if words[0] == "1" and len(words) == 4:
            address, size, raw = (_int(line, word) for word in words[1:])
            if address in live:
                raise TraceError(f"line {line}: malloc at {address:#x}, which is in use")
            stream = streams.setdefault(raw, len(streams))
            live[address] = out.malloc(size, stream, address=address) if size else 0
            empty += size == 0
        elif words[0] == "0" and 2 <= len(words) <= 4:
            address, *_ = (_int(line, word) for word in words[1:])
            if address not in live:
                raise TraceError(f"line {line}: free of {address:#x}, {_NO_CAUSE}")
            id = live.pop(address)
            empty += id == 0
            if id:
                out.add(Op.FREE, id)
        else:
            raise TraceError(
                f"line {line}: {text[:60]!r}; expected '1 pointer size stream' or '0 pointer'"
            )
    return out.build({"source": "STAlloc text", "streams": list(streams), **_left_out(empty)})


def _left_out(empty: int) -> dict[str, list[str]]:
    """Return what `info` says about rows of 0 bytes, which no allocator is asked for."""
    text = f"{empty} rows of 0 bytes are left out; they need no memory"
    return {"ambiguous": [text]} if empty else {}


def _lines(path: Source) -> Iterator[str]:
    with regular_file(path).open("rb") as file:
        number = 0
        while raw := file.readline(_LONGEST + 1):
            number += 1
            if len(raw) > _LONGEST:
                raise TraceError(f"line {number}: more than {_LONGEST} bytes long")
            try:
                yield raw.decode("utf-8")
            except UnicodeDecodeError:
                raise TraceError(f"line {number}: not UTF-8: {raw[:40]!r}") from None


def _rows(
    path: Source, header: list[str], more: list[str] | None = None
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield number and columns of each line; beside the header only `more` may stand, if given."""
    reader = csv.DictReader(_lines(path))
    try:
        names = [name.strip() for name in reader.fieldnames or []]
        reader.fieldnames = names
        unknown = set() if more is None else set(names) - {*header, *more}
        if not set(header) <= set(names) or len(set(names)) < len(names) or unknown:
            perhaps = f", perhaps {','.join(more)}" if more else ""
            raise TraceError(
                f"line 1: columns {','.join(names)[:100]!r}; expected {','.join(header)}{perhaps}"
            )
        for row in reader:
            if len(row) != len(names) or None in row.values():
                few = "few" if None in row.values() else "many"
                raise TraceError(
                    f"line {reader.line_num}: too {few} columns; expected {len(names)}"
                )
            yield reader.line_num, row
    except csv.Error as problem:
        raise TraceError(f"line {reader.line_num}: {problem}") from None


def _int(line: int, word: str, least: int = 0) -> int:
    word = word.strip()
    if not _NUMBER.fullmatch(word):
        raise TraceError(f"line {line}: {word[:40]!r} is not a number")
    value = int(word, 16 if word[:2] in ("0x", "0X") else 10)
    if not least <= value < 2**63:
        raise TraceError(f"line {line}: {value}; expected {least} to less than 2^63")
    return value


def _gaps(line: int, text: str) -> Iterator[tuple[int, int]]:
    for word in text.split():
        begin, dash, end = word.partition("-")
        if "@" in end:
            raise TraceError(
                f"line {line}: the gap {word[:40]!r} frees only a part of the buffer; expected "
                f"LOWER-UPPER, as parts are not supported"
            )
        if not dash:
            raise TraceError(f"line {line}: the gap {word[:40]!r}; expected LOWER-UPPER")
        yield _int(line, begin), _int(line, end)


def _clock(line: int, text: str) -> int:
    """Return ns of "HH:MM:SS:microseconds", or with a dot."""
    found = _TIME.fullmatch(text.strip())
    if found is None:
        raise TraceError(f"line {line}: time {text[:40]!r}; expected HH:MM:SS:microseconds")
    hours, minutes, seconds, fraction = (int(part) for part in found.groups())
    return ((hours * 60 + minutes) * 60 + seconds) * 10**9 + fraction * 1000


def _time_text(ns: int) -> str:
    seconds, rest = divmod(ns // 1000, 10**6)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}:{rest:06}"
