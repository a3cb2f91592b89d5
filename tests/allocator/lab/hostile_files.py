# SPDX-License-Identifier: BSD-3-Clause
"""Three hundred files that are wrong somewhere, the same for the same seed; and a run over them.

`python hostile_files.py FOLDER` reads every file of the folder as the command does, and prints what
came of it as JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import random
import sys
import traceback
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from npusim_lab import _lab, generate, load, save
from npusim_lab.command import main
from npusim_lab.snapshot_export import to_snapshot
from npusim_lab.trace import Op

COUNT = 300
WORDS = (
    "", "-5", "1_000", "٣", "\uff11\uff12", "1e9", "4096.0", "nan", "0", "+3", "0x", "0xg", "1 2",
    "true", "99999999999999999999", "9223372036854775808", "-9223372036854775809", "x" * 300,
    "\x00", '"', "0x" + "f" * 16, "=1+1",
)  # fmt: skip
VALUES = (
    None, True, -1, 1 << 63, 1 << 64, 1 << 70, 0.5, "", "abc", b"x", [], {}, (), [[]], "dance",
    float("nan"), -(1 << 63), "1", (1, 2, 3),
)  # fmt: skip
BOMB_BYTES = 300 << 20


def good_texts(folder: Path) -> dict[str, str]:
    """Return one good file of each text format, of some sixty lines."""
    trace = generate("zero3", steps=1)
    texts = {}
    for name in ("rmm", "buffers"):
        save(trace, folder / "good", name)
        lines = (folder / "good").read_text().splitlines()
        texts[name] = "\n".join(lines[:61]) + "\n"
    rows = [f"1 {n * 4096} {n * 512} {n % 3}\n0 {n * 4096} 0 0" for n in range(1, 31)]
    texts["stalloc"] = "\n".join(rows) + "\n"
    (folder / "good").unlink()
    return texts


def wrong_text(draw: random.Random, text: str) -> bytes:
    """Return a text with one thing wrong."""
    lines = text.splitlines()
    at = draw.randrange(len(lines))
    comma = "," if "," in text else " "
    words = lines[at].split(comma)
    match draw.randrange(9):
        case 0 | 1 | 2 | 3:
            words[draw.randrange(len(words))] = draw.choice(WORDS)
        case 4:
            words.append(draw.choice(("7", "", "0")))
        case 5:
            words.pop()
        case 6:
            lines.insert(at, lines[at])
        case 7:
            return (text[: len(text) // 2] + "\udcff").encode("utf-8", "surrogateescape")
        case 8:
            words[-1] += draw.choice(("1", "\x00", "٤", "_0", " ", "\t9"))
    if words != lines[at].split(comma):
        lines[at] = comma.join(words)
    return ("\n".join(lines) + "\n").encode()


def wrong_snapshot(draw: random.Random, picture: dict[str, Any]) -> bytes:
    """Return a pickled snapshot with one value, or some bytes, wrong."""
    copy = pickle.loads(pickle.dumps(picture))
    if draw.random() < 0.3:
        data = bytearray(pickle.dumps(copy, protocol=4))
        if draw.random() < 0.5:
            del data[draw.randrange(len(data)) :]
        else:
            for _ in range(3):
                data[draw.randrange(2, len(data))] = draw.randrange(256)
        return bytes(data)
    places: list[tuple[Any, Any]] = []

    def walk(container: Any) -> None:
        for key in container if isinstance(container, dict) else range(len(container)):
            places.append((container, key))
            if isinstance(container[key], dict | list):
                walk(container[key])

    walk(copy)
    container, key = draw.choice(places)
    if draw.random() < 0.2:
        del container[key]
    else:
        container[key] = draw.choice(VALUES)
    return pickle.dumps(copy, protocol=4)


def members(data: bytes) -> dict[str, bytes]:
    """Return what is in a trace file."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def zipped(parts: dict[str, bytes]) -> bytes:
    """Return a zip archive."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return out.getvalue()


def column(values: Any) -> bytes:
    """Return an array as numpy writes it."""
    out = io.BytesIO()
    np.lib.format.write_array(out, np.asarray(values), version=(1, 0), allow_pickle=True)
    return out.getvalue()


def wrong_trace(draw: random.Random, data: bytes) -> bytes:
    """Return a trace file with a member, or some bytes, wrong."""
    parts = members(data)
    head = json.loads(parts["head.json"])
    events = head["events"]
    name = draw.choice([name for name in parts if name != "head.json"])
    plain = [value for value in VALUES if not isinstance(value, bytes)]
    match draw.randrange(10):
        case 0 | 1 | 2:
            keys = (
                "capacity_bytes",
                "ambiguous",
                "policy",
                "settings",
                "initial_mallocs",
                "script",
            )
            head["info"][draw.choice(keys)] = draw.choice([v for v in plain if v is not None])
        case 3:
            head[draw.choice(list(head))] = draw.choice(plain)
        case 4:
            head["stacks"].append([draw.choice((-1, 1 << 40, True, "0", None))])
        case 5:
            head["frames"].append(draw.choice(([], ["a"], ["a", "1", "b"], [1, 2, 3], "abc", None)))
        case 6:
            parts[name] = column(draw.choice(([0.5] * events, ["a"] * events, [0] * (events + 1))))
        case 7:
            parts[draw.choice(("stray.npy", "../x", "id.npy.npy"))] = column([0] * events)
        case 8:
            parts[name] += b"\0" * 9
        case 9:
            damaged = bytearray(data)
            for _ in range(4):
                damaged[draw.randrange(len(damaged))] = draw.randrange(256)
            return bytes(damaged[: draw.randrange(10, len(damaged))])
    parts["head.json"] = json.dumps(head).encode()
    return zipped(parts)


def bombs(data: bytes) -> list[bytes]:
    """Return small trace files that would unpack to much."""
    parts = members(data)
    head = json.loads(parts["head.json"])
    zeros = np.zeros(BOMB_BYTES // 8, np.uint8)
    head["events"] = len(zeros)
    wide = {name: column(zeros) for name in parts if name != "head.json"}
    wide["head.json"] = json.dumps(head).encode()
    deep = {**parts, "head.json": b"[" * (BOMB_BYTES // 8)}
    lists = {**parts, "head.json": b'{"x":[' + b"[]," * (BOMB_BYTES // 8) + b"[]]}"}
    return [zipped(wide), zipped(deep), zipped(lists)]


def write_files(folder: Path, seed: int = 16, count: int = COUNT) -> None:
    """Write the files, numbered, with the format as suffix."""
    draw = random.Random(seed)
    texts = good_texts(folder)
    trace = generate("kv-cache", steps=1)
    save(trace, folder / "good", "npt")
    packed = (folder / "good").read_bytes()
    (folder / "good").unlink()
    picture = to_snapshot(trace)
    special = bombs(packed)
    for number in range(count):
        kind = ("rmm", "buffers", "stalloc", "pickle", "npt")[number % 5]
        if kind == "npt":
            data = special.pop() if special else wrong_trace(draw, packed)
        elif kind == "pickle":
            data = wrong_snapshot(draw, picture)
        else:
            data = wrong_text(draw, texts[kind])
        (folder / f"{number:03}.{kind}").write_bytes(data)


def dropped(path: Path) -> str:
    """Return what a file that was read says and its trace does not; "" for nothing."""
    kind = path.suffix[1:]
    formats = {"pickle": "snapshot"}
    trace = load(path, formats.get(kind, kind))
    if kind == "npt":
        events = json.loads(members(path.read_bytes())["head.json"])["events"]
        return "" if events == len(trace) else f"{events} events became {len(trace)}"
    if kind == "pickle":
        tables = _lab.Snapshot.read_file(str(path)).tables(int(trace.info["device"]))
        entries = int((tables["entries"]["op"] != Op.MARK).sum())
        kept = len(trace) - int(np.isin(trace.op, (Op.EMPTY_CACHE, Op.RESET_PEAKS)).sum())
        return "" if kept >= entries else f"{entries} entries became {kept} events"
    rows = [line for line in path.read_text().splitlines() if line.strip()]
    expected = len(rows) if kind == "stalloc" else len(rows) - 1
    expected *= 2 if kind == "buffers" else 1
    told = sum(int(text.split()[0]) for text in trace.ambiguous if "left out" in text)
    return "" if expected == len(trace) + told else f"{expected} rows became {len(trace)} events"


def run(folder: Path) -> dict[str, Any]:
    """Read every file, and count what came of it."""
    found: dict[str, Any] = {
        "read": 0,
        "refused": 0,
        "tracebacks": [],
        "dropped": [],
        "unclear": [],
    }
    for path in sorted(folder.iterdir()):
        kind = path.suffix[1:]
        out, errors = io.StringIO(), io.StringIO()
        words = ["import", str(path), str(folder.parent / "out.npt"), "--capacity", "16GiB"]
        words += ["--format", {"pickle": "snapshot"}.get(kind, kind)]
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
                status = main(words)
        except BaseException:
            found["tracebacks"].append(f"{path.name}: {traceback.format_exc()[-1500:]}")
            continue
        if status == 0:
            found["read"] += 1
            if wrong := dropped(path):
                found["dropped"].append(f"{path.name}: {wrong}")
            continue
        found["refused"] += 1
        said = errors.getvalue()
        if str(path) not in said or said.count("\n") != 1 or len(said) > 600:
            found["unclear"].append(f"{path.name}: {said[:500]}")
    status = Path("/proc/self/status").read_text()  # of this program alone, unlike ru_maxrss
    found["peak_mib"] = int(status.split("VmHWM:")[1].split()[0]) >> 10
    return found


if __name__ == "__main__":
    print(json.dumps(run(Path(sys.argv[1]))))
