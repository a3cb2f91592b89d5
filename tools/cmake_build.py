# SPDX-License-Identifier: BSD-3-Clause
"""The build_ext of both setup.py files: configure CMake, build the target named like the extension.

CMake writes the module into its Python package in the tree of sources, so an editable install is
complete at once and a wheel copies it. The environment is judged by check_env, whose one sentence
is all the user sees.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import check_env
from setuptools import Extension
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent.parent


class CMakeExtension(Extension):
    """An extension module that a CMake target builds in build/<build_folder>.

    `packages` is the folder of the tree in which the module's top package lies.
    """

    def __init__(
        self,
        name: str,
        build_folder: str,
        *,
        packages: str = ".",
        needs_torch: bool,
        options: list[str],
    ):
        super().__init__(name, sources=[])
        self.build_folder = ROOT / "build" / build_folder
        self.packages = ROOT / packages
        self.needs_torch = needs_torch
        self.options = options


class CMakeBuild(build_ext):
    """Builds CMakeExtension objects; see the module's docstring."""

    def build_extension(self, ext: CMakeExtension) -> None:
        """Builds `ext`, and copies it where setuptools collects a wheel."""
        try:
            check_env.check_python()
            compiler = check_env.find_compiler()
            if ext.needs_torch:
                check_env.find_torch()
        except check_env.EnvironmentUnfit as unfit:
            sys.exit(f"error: {unfit}")
        # cmake and ninja come with the interpreter's environment, active or not.
        path = str(Path(sys.executable).parent) + os.pathsep + os.environ.get("PATH", "")
        cmake, ninja = (shutil.which(tool, path=path) for tool in ("cmake", "ninja"))
        if cmake is None or ninja is None:
            sys.exit("error: cmake or ninja was not found; run `pip install cmake ninja`.")
        configure = [cmake, "-S", ROOT, "-B", ext.build_folder, "-G", "Ninja", *ext.options]
        configure += [f"-DNPUSIM_PYTHON={sys.executable}", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
        configure += [f"-DCMAKE_CXX_COMPILER={compiler}"]
        target = ext.name.rpartition(".")[2]
        for command in (configure, [cmake, "--build", ext.build_folder, "--target", target]):
            if subprocess.run(command).returncode != 0:
                sys.exit(f"error: building {ext.name} failed; the compiler's message is above.")
        built = ext.packages / self.get_ext_filename(ext.name)
        wanted = Path(self.get_ext_fullpath(ext.name)).absolute()
        if wanted != built:
            wanted.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(built, wanted)
            if ext.needs_torch:
                shutil.copy2(built.with_name("_C.built_for"), wanted.parent)
