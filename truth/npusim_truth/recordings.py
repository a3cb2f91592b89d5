# SPDX-License-Identifier: BSD-3-Clause
"""Recordings as files: read with clear errors, and split in two halves by a hash of each key."""

import hashlib
import json
import re
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from npusim_truth.recorder import batches
from torch_npusim.sim import specs

_MEMBER = "recording.json"
_LARGEST = 1 << 29  # bytes of the text within an archive


class TruthError(ValueError):
    """A recording that cannot be used; the message names the file and the remedy."""


class Key(NamedTuple):
    """A question: the section, and its key there."""

    section: str
    key: str


@dataclass(frozen=True)
class Recording:
    """The answers of a device.

    Attributes:
        name: The file's name.
        answers: Section -> key -> what the device answered.
        options: The recorder's: minutes, memory (bytes), sample.
    """

    name: str
    answers: dict[str, dict[str, Any]]
    options: dict[str, Any]

    def identity(self, key: str, default: Any = None) -> Any:
        """Returns what the section `identity` says of a key."""
        return self.answers.get("identity", {}).get(key, default)

    @property
    def chip(self) -> str:
        """The name of the device."""
        return str(self.identity("chip", "a device without a name"))

    @property
    def torch(self) -> str:
        """The version of torch, as torch writes it."""
        return str(self.identity("torch", "unknown"))

    def keys(self) -> Iterator[Key]:
        """Yields all questions that were answered."""
        for section, answers in self.answers.items():
            for key in answers:
                yield Key(section, key)

    def get(self, of: Key) -> Any:
        """Returns the answer; None where there is none."""
        return self.answers.get(of.section, {}).get(of.key)


def is_held_out(of: Key) -> bool:
    """Returns whether a question belongs to the half that no fit sees."""
    text = f"half|{of.section}|{of.key}"
    return hashlib.sha256(text.encode()).digest()[0] % 2 == 1


def load(path: str | PathLike[str]) -> Recording:
    """Reads an archive of the recorder.

    Raises:
        TruthError: If it is none, is cut off, or is of another schema.
    """
    path = Path(path)
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.getinfo(_MEMBER).file_size > _LARGEST:
                raise TruthError(f"{path}: its {_MEMBER} is larger than {_LARGEST >> 20} MiB")
            data = json.loads(archive.read(_MEMBER))
    except FileNotFoundError:
        raise TruthError(f"{path}: there is no such file") from None
    except (zipfile.BadZipFile, EOFError, OSError) as error:
        raise TruthError(
            f"{path}: not a whole archive ({error}); copy it again, or let the recorder finish"
        ) from None
    except KeyError:
        raise TruthError(f"{path}: an archive without {_MEMBER}, so no recording") from None
    except ValueError as error:
        if isinstance(error, TruthError):
            raise
        raise TruthError(f"{path}: its {_MEMBER} is not JSON ({error})") from None
    return _checked(path, data)


def _checked(path: Path, data: Any) -> Recording:
    if not isinstance(data, dict) or data.get("schema") != batches.SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else type(data).__name__
        raise TruthError(f"{path}: the schema is {found!r}, expected {batches.SCHEMA!r}")
    version = data.get("version")
    if not isinstance(version, int) or version < 1:
        raise TruthError(f"{path}: the version of its schema is {version!r}, expected a number")
    if version > batches.VERSION:
        raise TruthError(
            f"{path}: written by a newer recorder (schema {version}, known up to "
            f"{batches.VERSION}); update torch_npusim"
        )
    sections = data.get("sections")
    if not isinstance(sections, dict):
        raise TruthError(f"{path}: it has no sections")
    for name, section in sections.items():
        if name not in batches.SECTIONS:
            known = ", ".join(batches.SECTIONS)
            raise TruthError(f"{path}: the section {name!r} is unknown; known: {known}")
        if not isinstance(section, dict) or not isinstance(section.get("answers"), dict):
            raise TruthError(f"{path}: the section {name!r} has no answers")
    answers = {name: section["answers"] for name, section in sections.items()}
    return Recording(path.name, answers, data.get("options") or {})


def spec_of(recording: Recording) -> str | None:
    """Returns the specification of a recording's chip; None where no file is about it."""
    chip = recording.chip
    if recording.identity("simulated") and (chip in specs.names() or chip.endswith(".toml")):
        return chip
    memory = recording.identity("total_memory", 0) / (1 << 30)
    words = set(re.split(r"[^a-z0-9]+", chip.lower()))
    best: tuple[int, float, str] | None = None
    for name in specs.names():
        if name in specs.BUILT_IN:
            continue
        parts = name.split("-")
        family, rest = parts[0], parts[1:]
        if family == "rtx":
            family, rest = rest[0], rest[1:]
        if family not in words:
            continue
        capacity = specs.load(name).numbers["memory.capacity_gib"]
        # PCIe boards say so; of one family the nearest capacity counts.
        fits = sum(
            ("pcie" in words) == (part == "pcie") for part in rest if part in ("sxm", "pcie")
        )
        rank = (-fits, abs(capacity - memory), name)
        best = min(best, rank) if best else rank
    return best[2] if best else None


def host_of(recording: Recording) -> str:
    """Returns the host of a recording's machine: a name of specs.load_host().

    That of specs/hosts with its processor; else "eager". A simulated recording has "spec".
    """
    if recording.identity("simulated"):
        return "spec"
    processor = recording.identity("host processor")
    for path in sorted(specs.HOSTS.glob("*.toml")):
        if processor and tomllib.loads(path.read_text()).get("processor") == processor:
            return path.stem
    return "eager"
