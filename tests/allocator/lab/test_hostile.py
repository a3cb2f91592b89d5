# SPDX-License-Identifier: BSD-3-Clause
"""Files that are wrong somewhere: refused in one line or read whole, in bounded memory."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from processes import python

from npusim_lab.files import load
from npusim_lab.snapshot_import import from_snapshot
from npusim_lab.trace import TraceError

# Every reader of files, each on a pipe that nobody writes to, on a folder and on a device.
_READERS = """
import sys
from npusim_lab import _lab
from npusim_lab.files import load, load_buffers
from npusim_lab.snapshot_import import read_snapshot
from npusim_lab.text_formats import read_buffers, read_rmm, read_stalloc
from npusim_lab.trace_file import read_trace
from npusim_lab.study import replay
from npusim_lab.corpus import generate
trace = generate("zero3", steps=1)
policies = (lambda path: replay(trace, path), lambda path: replay(trace, path + ".py:Class"))
readers = (_lab.Snapshot.read_file, load, load_buffers, read_snapshot, read_buffers, read_rmm,
           read_stalloc, read_trace, *policies)
for path in sys.argv[1:]:
    for read in readers:
        try:
            print(read(path))
        except ValueError as problem:
            print(problem)
"""


# Small trace files that would unpack to much: the command reads each, and says its peak in MiB.
_BOMBS = """
import io, json, sys, zipfile
import numpy as np
from npusim_lab import generate, save
path, many = sys.argv[1], (300 << 20) // 8
save(generate("kv-cache", steps=1), path, "npt")
with zipfile.ZipFile(path) as file:
    parts = {name: file.read(name) for name in file.namelist()}
head, column = json.loads(parts["head.json"]), io.BytesIO()
np.lib.format.write_array(column, np.zeros(many, np.uint8), version=(1, 0))
wide = json.dumps(head | {"events": many}).encode()
bombs = [dict.fromkeys(parts, column.getvalue()) | {"head.json": wide}]
bombs += [parts | {"head.json": b"[" * many}, parts | {"head.json": b"[" + b"[]," * many + b"[]]"}]
for number, bomb in enumerate(bombs):
    with zipfile.ZipFile(f"{path}{number}", "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in bomb.items():
            file.writestr(name, data)
"""
_READ = """
import pathlib, sys
from npusim_lab.command import main
for number in range(3):
    assert main(["import", f"{sys.argv[1]}{number}", "out.npt", "--format", "npt"])
print(int(pathlib.Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) >> 10)
"""


def test_zip_bombs_are_refused_in_bounded_memory(tmp_path: Path) -> None:
    path = str(tmp_path / "bomb.npt")
    python("-c", _BOMBS, path, check=True)
    ended = python("-c", _READ, path, cold=True, check=True)
    assert int(ended.stdout) < 200
    lines = ended.stderr.splitlines()
    assert len(lines) == 3
    assert all(path in line and len(line) < 600 for line in lines)


def test_a_pipe_a_folder_and_a_device_are_refused_by_every_reader(tmp_path: Path) -> None:
    pipe, folder = tmp_path / "pipe.so", tmp_path / "folder.so"
    os.mkfifo(pipe)
    os.mkfifo(f"{pipe}.py")
    folder.mkdir()
    paths = [str(pipe), str(folder), "/dev/zero"]
    command = ["-c", _READERS, *paths]
    ended = python(*command, timeout=60, check=True)
    said = ended.stdout.splitlines()
    readers = len(said) // len(paths)
    assert readers == 10
    for path, kind in zip(paths, ("a pipe", "a folder", "a device"), strict=True):
        reader, *readers_with_path = said[:8]
        assert reader == f"is {kind}; expected a regular file"
        assert readers_with_path == [f"{path}: {reader}"] * 7
        named = path.endswith(".so")  # other names are not taken for those of libraries
        assert said[8] == f"policy {path}: is no regular file" if named else path in said[8]
        assert "there is no file" in said[9]
        said = said[readers:]


BASE, SEGMENT, BLOCK = 1 << 30, 20 << 20, 12 << 20


def possible() -> dict[str, Any]:
    """Return a snapshot of one segment with a live block and free memory behind it."""
    held = {"address": BASE, "size": BLOCK, "requested_size": BLOCK, "state": "active_allocated"}
    free = {"address": BASE + BLOCK, "size": SEGMENT - BLOCK, "state": "inactive"}
    segment = {"device": 0, "address": BASE, "total_size": SEGMENT, "stream": 0}
    keys = {"stream": 0, "time_us": 1}
    entries = [
        {"action": "segment_alloc", "addr": BASE, "size": SEGMENT, **keys},
        {"action": "alloc", "addr": BASE, "size": BLOCK, **keys},
    ]
    return {"segments": [{**segment, "blocks": [held, free]}], "device_traces": [entries]}


def more(**entry: int) -> Any:
    return lambda file: file["device_traces"][0].append(
        {"action": "alloc", "stream": 0, "time_us": 2, **entry}
    )


IMPOSSIBLE = {
    "overlaps the block of 12582912 bytes at 0x40000000": more(addr=BASE + 4096, size=BLOCK),
    "go beyond the end of their segment": more(addr=BASE + BLOCK, size=2 * SEGMENT),
    "of 41943040 bytes is not within its segment": lambda file: file["segments"][0]["blocks"][
        0
    ].update(size=2 * SEGMENT),
    f"the free block at {BASE + BLOCK} of 41943040 bytes is not within": lambda file: file[
        "segments"
    ][0]["blocks"][1].update(size=2 * SEGMENT),
    "of 12582912 bytes is for 20971520": lambda file: file["segments"][0]["blocks"][0].update(
        requested_size=SEGMENT
    ),
    "the segment at 0x40000000 is there twice": lambda file: file["segments"].append(
        file["segments"][0]
    ),
    "the segments at 0x40000000 and 0x40400000 overlap": lambda file: file["segments"].append(
        {**file["segments"][0], "address": BASE + (4 << 20), "blocks": []}
    ),
    "segment_alloc at 0x40000000, where a segment is": more(
        action="segment_alloc", addr=BASE, size=SEGMENT
    ),
    "a stream is -1; expected 0 or the address of a stream": more(
        addr=BASE + BLOCK, size=4096, stream=-1
    ),
    "entry 2 of device 0: 9223372036854775808 bytes; no device has 2^60": more(
        addr=BASE + BLOCK, size=1 << 63
    ),
    "the segment at 0x40000000 has 9223372036854775808 bytes": lambda file: file["segments"][
        0
    ].update(total_size=1 << 63),
}


@pytest.mark.parametrize("sentence", IMPOSSIBLE)
def test_what_no_allocator_leaves_is_refused_with_what_is_wrong(sentence: str) -> None:
    file = possible()
    assert from_snapshot(file).compiled.mallocs == 1
    IMPOSSIBLE[sentence](file)
    with pytest.raises(TraceError, match=re.escape(sentence)):
        from_snapshot(file)


def test_buffers_that_need_two_to_the_63_bytes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"id,lower,upper,size\na,0,10,{2**63 - 1}\nb,0,10,{2**63 - 1}\n")
    with pytest.raises(ValueError, match=r"have 2\^63 bytes or more together"):
        load(path)
