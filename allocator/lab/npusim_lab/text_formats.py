# SPDX-License-Identifier: BSD-3-Clause
"""Traces in other tools' text: RMM's log, the CSV of MiniMalloc and idealloc, STAlloc's text.

All of them name the line that cannot be read. Times that run backwards between threads are held.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from os import PathLike
from pathlib import Path

import numpy as np

from npusim_lab.trace import Op, Trace, TraceBuilder, TraceError

Source = str | PathLike[str]
_RMM_HEADER = ["Thread", "Time", "Action", "Pointer", "Size", "Stream"]
_DSA_HEADER = ["id", "lower", "upper", "size"]
_NO_CAUSE = "unpaired: its allocation is not in the file"


def read_rmm(path: Source) -> Trace:
    """Read the log of RMM's logging adaptor: Thread,Time,Action,Pointer,Size,Stream.

    Raises:
        TraceError: Naming the line that cannot be, and why.
        OSError: If the file cannot be read.
    """
    out, live, streams = TraceBuilder(), dict[int, int](), {0: 0}
    clock = 0
    for line, row in _rows(path, _RMM_HEADER):
        action, pointer, size = row["Action"].strip(), row["Pointer"], _int(line, row["Size"])
        stream = streams.setdefault(_int(line, row["Stream"]), len(streams))
        clock = max(clock, _clock(row["Time"]))
        if action == "allocate failure":
            out.add(Op.OOM, bytes=size, stream=stream, time_ns=clock)
            continue
        if size == 0:
            continue
        address = _int(line, pointer)
        if action == "allocate":
            if address in live:
                raise TraceError(f"line {line}: allocate at {address:#x}, which is in use")
            live[address] = out.malloc(size, stream, time_ns=clock, address=address)
        elif action == "free":
            if address not in live:
                raise TraceError(f"line {line}: free of {address:#x}, {_NO_CAUSE}")
            out.add(Op.FREE, live.pop(address), time_ns=clock)
        else:
            raise TraceError(
                f"line {line}: action {action!r}; expected allocate, free or allocate failure"
            )
    return out.build({"source": "RMM log", "streams": list(streams)})


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


def read_buffers(path: Source) -> Trace:
    """Read buffers with lifetimes [lower, upper): id,lower,upper,size, as MiniMalloc has them.

    Raises:
        TraceError: Naming the line that cannot be, and why.
        OSError: If the file cannot be read.
    """
    edges: list[tuple[int, int, int, int]] = []  # moment, 0 free or 1 malloc, number, bytes
    for number, (line, row) in enumerate(_rows(path, _DSA_HEADER), 1):
        lower, upper = _int(line, row["lower"]), _int(line, row["upper"])
        size = _int(line, row["size"])
        if upper <= lower or size < 0:
            raise TraceError(
                f"line {line}: lower {lower}, upper {upper}, size {size}; expected lower < upper "
                f"and a size of at least 0"
            )
        if size > 0:
            edges += [(lower, 1, number, size), (upper, 0, number, size)]
    edges.sort()
    start = edges[0][0] if edges else 0
    out = TraceBuilder()
    for moment, is_malloc, number, size in edges:
        if is_malloc:
            out.add(Op.MALLOC, number, size, time_ns=moment - start)
        else:
            out.add(Op.FREE, number, time_ns=moment - start)
    return out.build({"source": "buffers with lifetimes", "time_unit": "as in the file"})


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
    out, live, streams = TraceBuilder(), dict[int, int](), {0: 0}
    for line, text in enumerate(_lines(path), 1):
        words = text.split()
        if not words:
            continue
        if words[0] == "1" and len(words) == 4:
            address, size, raw = (_int(line, word) for word in words[1:])
            if address in live:
                raise TraceError(f"line {line}: malloc at {address:#x}, which is in use")
            if size > 0:
                stream = streams.setdefault(raw, len(streams))
                live[address] = out.malloc(size, stream, address=address)
        elif words[0] == "0" and len(words) >= 2:
            address = _int(line, words[1])
            if address not in live:
                raise TraceError(f"line {line}: free of {address:#x}, {_NO_CAUSE}")
            out.add(Op.FREE, live.pop(address))
        else:
            raise TraceError(
                f"line {line}: {text[:60]!r}; expected '1 pointer size stream' or '0 pointer'"
            )
    return out.build({"source": "STAlloc text", "streams": list(streams)})


def _lines(path: Source) -> Iterator[str]:
    with Path(path).open(encoding="utf-8", errors="replace", newline=None) as file:
        yield from file


def _rows(path: Source, header: list[str]) -> Iterator[tuple[int, dict[str, str]]]:
    reader = csv.DictReader(_lines(path))
    try:
        names = [name.strip() for name in reader.fieldnames or []]
        reader.fieldnames = names
        if not set(header) <= set(names):
            raise TraceError(f"{path}: line 1: columns {names}; expected {','.join(header)}")
        for row in reader:
            values = {name: row[name] for name in header}
            if None in values.values():
                raise TraceError(f"line {reader.line_num}: too few columns; expected {len(names)}")
            yield reader.line_num, values
    except csv.Error as problem:
        raise TraceError(f"{path}: line {reader.line_num}: {problem}") from None


def _int(line: int, word: str) -> int:
    word = word.strip()
    try:
        value = int(word, 16 if word.lower().startswith("0x") else 10)
    except ValueError:
        raise TraceError(f"line {line}: {word[:40]!r} is not a number") from None
    if not -(2**62) < value < 2**63:
        raise TraceError(f"line {line}: {value} does not fit; expected less than 2^63")
    return value


def _clock(text: str) -> int:
    """Return ns of "HH:MM:SS:microseconds" (or with a dot); 0 for any other form."""
    parts = text.strip().replace(".", ":").split(":")
    if len(parts) != 4 or not all(part.isdigit() for part in parts):
        return 0
    hours, minutes, seconds, fraction = (int(part[:9]) for part in parts)
    return ((hours * 60 + minutes) * 60 + seconds) * 10**9 + fraction * 1000


def _time_text(ns: int) -> str:
    seconds, rest = divmod(ns // 1000, 10**6)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}:{rest:06}"
