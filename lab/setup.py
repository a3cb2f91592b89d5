# SPDX-License-Identifier: BSD-3-Clause
"""Builds npusim_lab._lab with CMake, without torch; the rest is in pyproject.toml.

The C++ of the allocator is beside this folder, or in native/ if this is an unpacked sdist.
"""

import sys
from pathlib import Path

from setuptools import setup

sys.path.insert(0, str(Path(__file__).resolve().parent / "../tools"))
sys.path.insert(0, str(Path(__file__).resolve().parent / "native/tools"))
from cmake_build import CMakeBuild, CMakeExtension
from native_sdist import NativeSdist

LAB_ONLY = ["-DNPUSIM_BUILD_LAB=ON", "-DNPUSIM_BUILD_TORCH=OFF", "-DNPUSIM_BUILD_TESTS=OFF"]

setup(
    ext_modules=[
        CMakeExtension(
            "npusim_lab._lab",
            "lab",
            packages="lab",
            needs_torch=False,
            options=LAB_ONLY,
        )
    ],
    cmdclass={"build_ext": CMakeBuild, "sdist": NativeSdist},
)
