# SPDX-License-Identifier: BSD-3-Clause
"""The journal, a line per answer, and the archive that is made of it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import zipfile
from collections.abc import Iterator
from typing import Any

from . import batches
from .batches import BATCHES, LARGEST_ARCHIVE, SCHEMA, VERSION
from .privacy import scrub


def write_answer(journal: int, name: str, key: str, value: Any, seconds: float = 0.0) -> None:
    """Appends a line to the journal, whole."""
    line = json.dumps([name, key, scrub(value), round(seconds, 3)])
    os.write(journal, line.encode() + b"\n")


def read_journal(folder: str) -> Iterator[tuple[str, str, Any, float]]:
    """Yields batch, key, answer, seconds; not a last line that was cut off."""
    path = os.path.join(folder, "journal")
    if not os.path.exists(path):
        return
    with open(path) as file:
        for line in file:
            with contextlib.suppress(ValueError):
                name, key, value, seconds = json.loads(line)
                yield name, key, value, seconds


def read_answers(folder: str) -> dict[str, Any]:
    """Returns a recording's sections from the journal."""
    made: dict[str, Any] = {}
    for name, key, value, seconds in read_journal(folder):
        section = made.setdefault(BATCHES[name].section, {"answers": {}, "seconds": 0.0})
        section["seconds"] = round(section["seconds"] + seconds, 3)
        if value is not None:
            section["answers"][key] = value
    return made


def write_archive(path: str, folder: str) -> dict[str, Any]:
    """Writes the recording; the longest answers are left out while it is over 15 MB."""
    made: dict[str, Any] = {
        "schema": SCHEMA,
        "version": VERSION,
        "options": batches.OPTIONS._asdict(),
        "left_out": 0,
        "sections": read_answers(folder),
    }
    while True:
        data = io.BytesIO()
        with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as file:
            info = zipfile.ZipInfo("recording.json")
            info.compress_type = zipfile.ZIP_DEFLATED
            file.writestr(info, json.dumps(made, sort_keys=True, separators=(",", ":")))
        if len(data.getvalue()) <= LARGEST_ARCHIVE:
            break
        places = [(len(json.dumps(v)), s, k) for s, of in made["sections"].items()
                  for k, v in of["answers"].items()]  # fmt: skip
        for _, section, key in sorted(places, reverse=True)[: max(len(places) // 100, 1)]:
            del made["sections"][section]["answers"][key]
            made["left_out"] += 1
    with open(path + ".part", "wb") as out:
        out.write(data.getvalue())
    os.replace(path + ".part", path)
    return made
