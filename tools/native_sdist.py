# SPDX-License-Identifier: BSD-3-Clause
"""The sdist of a distribution whose C++ lies outside its folder: carries it along in native/.

native/ mirrors the part of the tree that CMake needs, so the one CMakeLists.txt serves both.
"""

import shutil
from collections.abc import Iterable
from pathlib import Path

from cmake_build import ROOT
from setuptools.command.sdist import sdist

NATIVE = [
    "CMakeLists.txt",
    "tools/*.py",
    "allocator/*.h",
    "allocator/*.cpp",
    "allocator/placement/*.h",
    "allocator/placement/*.cpp",
    "lab/engine/*.h",
    "lab/engine/*.cpp",
    "lab/bindings/*.h",
    "lab/bindings/*.cpp",
]


class NativeSdist(sdist):
    """Adds the files of NATIVE; see the module's docstring."""

    def make_release_tree(self, base_dir: str, files: Iterable[str]) -> None:
        """Makes the folder that is packed."""
        super().make_release_tree(base_dir, files)
        for pattern in NATIVE:
            for source in sorted(ROOT.glob(pattern)):
                target = Path(base_dir, "native", source.relative_to(ROOT))
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
