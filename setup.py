# SPDX-License-Identifier: BSD-3-Clause
"""Builds torch_npusim._C with CMake; everything else about the package is in pyproject.toml."""

import sys
from pathlib import Path

from setuptools import setup

sys.path.insert(0, str(Path(__file__).resolve().parent / "tools"))
from cmake_build import CMakeBuild, CMakeExtension

setup(
    ext_modules=[
        CMakeExtension(
            "torch_npusim._C", "release", needs_torch=True, options=["-DNPUSIM_BUILD_TORCH=ON"]
        )
    ],
    cmdclass={"build_ext": CMakeBuild},
)
