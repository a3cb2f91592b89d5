# SPDX-License-Identifier: BSD-3-Clause
"""Backends of others: pinned revisions, small edits for the installed torch, and builds.

`foreign.py` asks for a backend whose folder it misses. Without a network, or if a build fails, it
gets a reason in words.
"""

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

CLONE_SECONDS = 600
BUILD_SECONDS = 3600


class NotToBeHad(Exception):
    """A backend that cannot be fetched or built; the message says why."""


@dataclass(frozen=True)
class Source:
    """A revision of a repository, and what makes a package of it that torch can import."""

    repository: str
    revision: str
    folder: str = ""  # of the repository, if the backend is a part of it
    edits: tuple[tuple[str, str, str], ...] = ()  # file, pattern and its replacement
    build: tuple[str, ...] = ()  # arguments of Python
    environment: str = ""  # that the backend needs, in words for the scoreboard


IN_PLACE = ("setup.py", "-q", "build_ext", "--inplace")
SOURCES = {
    "torch_openreg": Source(
        "https://github.com/pytorch/pytorch",
        "v2.13.0",
        "test/cpp_extensions/open_registration_extension/torch_openreg",
        build=IN_PLACE,
    ),
    "torch_mcpu": Source(
        "https://github.com/kzwrime/torch_mcpu",
        "789373a8e7e2696383fd557a681f721e4261ddd1",
        edits=(
            # A constant and three names of overloads that torch 2.13 has no longer.
            (
                "csrc/runtime/DeviceCachingAllocator.cpp",
                r"return kLargeBuffer;",
                "return 20971520;",
            ),
            (
                "torch_mcpu/inductor/extension_codegen_backend.py",
                r"\n *torch\.ops\.aten\.(full|ones|zeros)\.names,",
                "",
            ),
        ),
        build=IN_PLACE,
        environment="no CPU fallback; a constant and three overload names patched",
    ),
    "tinygrad": Source(
        "https://github.com/tinygrad/tinygrad",
        "a9069c177a9da9cca18593edf55acd2e6073cca6",
        environment="the machine's clang",
    ),
}


def fetch(name: str, source: Source, sources: Path) -> None:
    """Clones a backend into a folder of `sources` and builds it. Raises NotToBeHad."""
    place = sources / ".clones" / name
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    _do("git", "init", "-q", where=place)
    if source.folder:
        _do("git", "sparse-checkout", "set", source.folder, where=place)
    asked = ("--depth", "1", "--filter", "blob:none", source.repository, source.revision)
    _do("git", "fetch", "-q", *asked, where=place, seconds=CLONE_SECONDS)
    _do("git", "checkout", "-q", "FETCH_HEAD", where=place, seconds=CLONE_SECONDS)
    folder = place / source.folder
    for file, pattern, text in source.edits:
        edited, count = re.subn(pattern, text, (folder / file).read_text())
        if not count:
            raise NotToBeHad(f"{file} has nothing to edit for this torch")
        (folder / file).write_text(edited)
    if source.build:
        _do(sys.executable, *source.build, where=folder, seconds=BUILD_SECONDS)
    told = (source.revision[:7] if "." not in source.revision else source.revision,)
    told += (source.environment,) if source.environment else ()
    (folder / "COMMIT").write_text(", ".join(told) + "\n")
    (sources / name).symlink_to(folder.resolve())


def _do(*command: str, where: Path, seconds: int = 60) -> None:
    """Runs a command. Raises NotToBeHad with its last line where it fails."""
    shown = " ".join((Path(command[0]).name, *command[1:2]))
    try:
        done = subprocess.run(
            command,
            cwd=where,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise NotToBeHad(f"{shown} took more than {seconds} s") from error
    except OSError as error:
        raise NotToBeHad(f"{shown}: {error.strerror}") from error
    if done.returncode:
        last = [line.strip() for line in done.stderr.splitlines() if line.strip()][-1:]
        raise NotToBeHad(f"{shown}: {(last or [f'exit status {done.returncode}'])[0][:150]}")
