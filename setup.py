# SPDX-License-Identifier: BSD-3-Clause
"""Builds torch_npusim._C with CMake for the installed torch; the rest is in pyproject.toml.

The C++ interface of torch changes with every minor release. A wheel names its torch in its version
(0.1.0+torch2.13) and in its requirements; a source distribution requires any supported torch.
"""

import re
import sys
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "tools"))
import check_env  # noqa: E402
from cmake_build import CMakeBuild, CMakeExtension  # noqa: E402


def version_and_requirements() -> tuple[str, list[str]]:
    """Returns the version of this distribution, and which torch it needs."""
    source = (ROOT / "torch_npusim" / "__init__.py").read_text()
    (version,) = re.findall(r'^__version__ = "(.*)"$', source, re.M)
    if {"sdist", "egg_info"} & set(sys.argv):
        known = check_env.TORCH_SUPPORTED
        major, minor = known[-1].split(".")
        return version, [f"torch>={known[0]},<{major}.{int(minor) + 1}"]
    try:
        _, torch = check_env.find_torch()
    except check_env.EnvironmentUnfit as unfit:
        sys.exit(f"error: {unfit}")
    minor = check_env.torch_minor(torch)
    return f"{version}+torch{minor}", [f"torch=={minor}.*"]


VERSION, REQUIREMENTS = version_and_requirements()

setup(
    version=VERSION,
    install_requires=REQUIREMENTS,
    ext_modules=[
        CMakeExtension(
            "torch_npusim._C", "release", needs_torch=True, options=["-DNPUSIM_BUILD_TORCH=ON"]
        )
    ],
    cmdclass={"build_ext": CMakeBuild},
)
