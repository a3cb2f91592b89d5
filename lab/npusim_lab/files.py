# SPDX-License-Identifier: BSD-3-Clause
"""Which reader or writer a file needs, by its name and first bytes."""

from __future__ import annotations

import re
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npusim_lab.trace import Op, SeveralDevicesError, Trace, TraceError, regular_file

if TYPE_CHECKING:
    from npusim_lab.planning import Buffers

# What is taken for a trace, by its first bytes, and what to do with it.
_FOREIGN = (
    (rb"version https://git-lfs", "is a pointer of Git LFS; `git lfs pull` brings the file"),
    (rb"\x1f\x8b", "is compressed by gzip; unpack it first"),
    (rb"\xfd7zXZ", "is compressed by xz; unpack it first"),
    (rb"\x28\xb5\x2f\xfd", "is compressed by zstd; unpack it first"),
    (rb"PK\x03\x04.{26,90}/data\.pkl", "is of torch.save(); expected what _dump_snapshot() wrote"),
    (rb"(\xef\xbb\xbf)?\s*<", "is a page; expected what _dump_snapshot() wrote"),
    (rb"(\xef\xbb\xbf)?\s*\{", "is JSON; expected what _dump_snapshot() wrote"),
)
READS = ("npt", "snapshot", "rmm", "buffers", "stalloc")
WRITES = ("npt", "snapshot", "rmm", "buffers")


def load(
    path: str | PathLike[str],
    format: str | None = None,
    device: int | None = None,
    capacity_bytes: int | None = None,
    limit_bytes: int | None = None,
) -> Trace:
    """Read a trace in any format that the lab knows.

    Args:
        path: of the file.
        format: one of READS; recognised by default.
        device: of a snapshot that is about several.
        capacity_bytes: of the recorded device, where known.
        limit_bytes: the most memory that a .npt file may take; see read_trace().

    Raises:
        TraceError: If the file is in no such format, or holds events that cannot be.
        OSError: If it cannot be read.
    """
    chosen = format or _recognise(Path(path))
    if chosen == "snapshot":
        from npusim_lab.snapshot_import import read_snapshot

        return read_snapshot(path, device, capacity_bytes)
    if device is not None:
        raise TraceError(f"{path}: a device can be chosen in snapshots only; this is {chosen}")
    if chosen == "npt":
        from npusim_lab.trace_file import read_trace

        trace = read_trace(path, limit_bytes)
    elif chosen in READS:
        from npusim_lab import text_formats

        readers = {
            "rmm": text_formats.read_rmm,
            "buffers": lambda path: text_formats.read_buffers(path).as_trace(),
            "stalloc": text_formats.read_stalloc,
        }
        try:
            trace = readers[chosen](path)
        except TraceError as problem:
            raise TraceError(f"{path}: {problem}") from None
    else:
        raise TraceError(f"format {chosen!r}; expected one of {', '.join(READS)}")
    if capacity_bytes is None:
        return trace
    outside = capacity_bytes - (trace.capacity_bytes or capacity_bytes)
    if outside > 0 and trace.info.get("source") == "torch snapshot" and (trace.op == Op.OOM).any():
        return trace.with_info(outside_bytes=outside)
    return trace.with_info(capacity_bytes=capacity_bytes)


def load_failed(path: str | PathLike[str], device: int | None = None, **more: int | None) -> Trace:
    """Read a trace; of a snapshot about several devices that of the only one that failed.

    Args:
        path, device, more: as for load().

    Raises:
        SeveralDevicesError: If none of several failed, or more than one.
    """
    try:
        return load(path, device=device, **more)  # type: ignore[arg-type]
    except SeveralDevicesError as several:
        failed = []
        for number in several.devices:
            trace = load(path, device=number, **more)  # type: ignore[arg-type]
            if (trace.op == Op.OOM).any():
                failed.append(trace)
        if len(failed) != 1:
            raise
        of = failed[0].info["device"]
        known = f"of devices {several.devices} only {of} ran out of memory; this is about it"
        return failed[0].with_info(known=[known, *failed[0].info.get("known", ())])


def load_buffers(path: str | PathLike[str], **of_trace: Any) -> Buffers:
    """Read buffers with lifetimes: of MiniMalloc's CSV as they are, of a trace its mallocs.

    Args:
        path: of the file, in any format that the lab knows.
        of_trace: what load() takes besides.

    Raises:
        TraceError: If the file is in no such format, or holds what cannot be.
        OSError: If it cannot be read.
    """
    from npusim_lab.planning import Buffers
    from npusim_lab.text_formats import read_buffers

    if _recognise(Path(path)) != "buffers":
        return Buffers.of_trace(load(path, **of_trace).with_attempts())
    try:
        return read_buffers(path)
    except TraceError as problem:
        raise TraceError(f"{path}: {problem}") from None


def save(trace: Trace, path: str | PathLike[str], format: str | None = None, **run: Any) -> None:
    """Write a trace.

    Args:
        trace: the events.
        path: of the file.
        format: one of WRITES; by default "snapshot" for names in .pickle or .pkl, else "npt".
        run: for a snapshot, policy (Choice) and capacity_bytes of the replay that gives addresses.

    Raises:
        TraceError: For an unknown format.
        OSError: If the file cannot be written.
    """
    by_name = "snapshot" if Path(path).suffix in (".pickle", ".pkl") else "npt"
    match format or by_name:
        case "npt":
            from npusim_lab.trace_file import write_trace

            write_trace(trace, path)
        case "snapshot":
            from npusim_lab.snapshot_export import write_snapshot

            write_snapshot(trace, path, **run)
        case "rmm":
            from npusim_lab.text_formats import write_rmm

            write_rmm(trace, path)
        case "buffers":
            from npusim_lab.text_formats import write_buffers

            write_buffers(trace, path)
        case other:
            raise TraceError(f"format {other!r}; expected one of {', '.join(WRITES)}")


def _recognise(path: Path) -> str:
    with regular_file(path).open("rb") as file:
        start = file.read(200)
    for begin, problem in _FOREIGN:
        if re.match(begin, start, re.DOTALL):
            raise TraceError(f"{path}: {problem}")
    if start.startswith(b"PK\x03\x04"):
        return "npt"
    if start[:1] == b"\x80" or path.suffix in (".pickle", ".pkl"):
        return "snapshot"
    head = start.split(b"\n")[0].replace(b" ", b"")
    if head.startswith(b"Thread,Time,Action"):
        return "rmm"
    if b"lower" in head and b"upper" in head:
        return "buffers"
    if head[:1] in (b"0", b"1") and start[1:2] in (b" ", b"\t"):
        return "stalloc"
    raise TraceError(f"{path}: in no format that the lab recognises; name it: {', '.join(READS)}")
