# SPDX-License-Identifier: BSD-3-Clause
"""Builds npusim_lab._lab with CMake, without torch; the rest is in pyproject.toml.

The C++ of the allocator is two folders up, so this builds from a checkout of the repository.
"""

import sys
from pathlib import Path

from setuptools import setup

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from cmake_build import CMakeBuild, CMakeExtension

LAB_ONLY = ["-DNPUSIM_BUILD_LAB=ON", "-DNPUSIM_BUILD_TORCH=OFF", "-DNPUSIM_BUILD_TESTS=OFF"]

setup(
    license="BSD-3-Clause",
    ext_modules=[CMakeExtension("npusim_lab._lab", "lab", needs_torch=False, options=LAB_ONLY)],
    cmdclass={"build_ext": CMakeBuild},
)
