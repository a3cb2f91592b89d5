# SPDX-License-Identifier: BSD-3-Clause
"""Builds npusim_lab._lab with CMake, without torch; the rest is in pyproject.toml.

The C++ of the allocator is beside this folder, or in native/ if this is an unpacked sdist. A
checkout that has built torch_npusim has compiled it.
"""

import sys
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "native/tools"), str(HERE.parent / "tools")]
from cmake_build import CMakeBuild, CMakeExtension  # noqa: E402
from native_sdist import NativeSdist  # noqa: E402

OPTIONS = ["-DNPUSIM_BUILD_LAB=ON"]
if not (with_torch := (HERE.parent / "build/release/CMakeCache.txt").exists()):
    OPTIONS += ["-DNPUSIM_BUILD_TORCH=OFF", "-DNPUSIM_BUILD_TESTS=OFF"]

setup(
    ext_modules=[
        CMakeExtension(
            "npusim_lab._lab",
            "release" if with_torch else "lab",
            packages="lab",
            needs_torch=False,
            options=OPTIONS,
        )
    ],
    cmdclass={"build_ext": CMakeBuild, "sdist": NativeSdist},
)
