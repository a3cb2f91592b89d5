# SPDX-License-Identifier: BSD-3-Clause
"""Checks the toolchain and tells CMake where torch is.

The Makefile, setup.py and CMakeLists.txt all ask this script, so each version rule and its sentence
stands here once. Any Python, however old, must be able to read it and be told what is missing: no
annotations, no f-strings. torch is found without importing it.

    check_env.py                     check Python and the compiler
    check_env.py --torch             check torch too
    check_env.py --cmake [--torch]   the same, then print set(...) lines for CMake
"""

import os
import re
import shutil
import subprocess
import sys

PYTHON_NEEDED = (3, 11)
GXX_NEEDED = 12
# A minor version joins when the whole suite passes on it.
TORCH_SUPPORTED = ("2.13", "2.14", "2.15")


class EnvironmentUnfit(Exception):
    """One sentence: what was found, what is needed, what to do."""


def check_python():
    """Raises EnvironmentUnfit unless this interpreter is new enough."""
    import sysconfig

    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise EnvironmentUnfit(
            "torch_npusim needs a Python with the global interpreter lock, but {0} is a "
            "free-threaded build; name another interpreter with "
            "`make PYTHON=/path/to/python3.{1}`.".format(sys.executable, sys.version_info[1])
        )
    if sys.version_info[:2] < PYTHON_NEEDED:
        raise EnvironmentUnfit(
            "torch_npusim needs Python {0[0]}.{0[1]} or newer, but {1} is Python {2[0]}.{2[1]}; "
            "install python3.11, or name another interpreter with "
            "`make PYTHON=/path/to/python3.11`.".format(
                PYTHON_NEEDED, sys.executable, sys.version_info
            )
        )


def find_compiler():
    """Returns the C++ compiler command ($CXX, else g++) after checking its version."""
    command = os.environ.get("CXX") or "g++"
    remedy = "install g++-{} or name another with CXX=/path/to/g++".format(GXX_NEEDED)
    if not shutil.which(command):
        raise EnvironmentUnfit(
            "torch_npusim needs g++ {} or newer, but `{}` was not found; {}.".format(
                GXX_NEEDED, command, remedy
            )
        )
    macros = subprocess.run(
        [command, "-dM", "-E", "-x", "c++", os.devnull],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        universal_newlines=True,
    ).stdout
    gnu = re.search(r"#define __GNUC__ (\d+)", macros)
    if "#define __clang__" in macros or not gnu or int(gnu.group(1)) < GXX_NEEDED:
        found = "clang" if "__clang__" in macros else "g++ " + gnu.group(1) if gnu else "no GNU C++"
        raise EnvironmentUnfit(
            "torch_npusim needs g++ {} or newer, but `{}` is {}; {}.".format(
                GXX_NEEDED, command, found, remedy
            )
        )
    return command


def find_torch():
    """Returns torch's package folder and version, without importing it, after checking the latter.

    pip builds in an environment of its own, which hides the torch that the package will run with:
    so the interpreter's own folder is searched too.
    """
    import sysconfig
    from importlib import metadata

    paths = [*sys.path, sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"]]
    known = ", ".join(TORCH_SUPPORTED)
    found = next(iter(metadata.distributions(name="torch", path=paths)), None)
    if found is None:
        raise EnvironmentUnfit(
            "torch_npusim is compiled against the torch that it runs with ({}), but {} has none; "
            "install one first, for example `pip install torch=={}.0`.".format(
                known, sys.executable, TORCH_SUPPORTED[0]
            )
        )
    minor = torch_minor(found.version)
    if minor not in TORCH_SUPPORTED:
        raise EnvironmentUnfit(
            "torch_npusim supports torch {}, but {} has torch {}; install another, for example "
            "`pip install 'torch=={}.*'`.".format(
                known, sys.executable, found.version, TORCH_SUPPORTED[-1]
            )
        )
    return str(found.locate_file("torch")), found.version


def torch_minor(version):
    """Returns "2.13" for "2.13.0+cpu": a build serves every patch release of its minor version."""
    return ".".join(version.split(".")[:2])


def cmake_lines(torch):
    """Yields the facts that CMakeLists.txt needs, one set() each; `torch` is find_torch()'s."""
    import sysconfig

    yield "NPUSIM_PYTHON_INCLUDE", sysconfig.get_paths()["include"]
    yield "NPUSIM_EXT_SUFFIX", sysconfig.get_config_var("EXT_SUFFIX")
    if torch:
        yield "NPUSIM_TORCH_ROOT", torch[0]
        yield "NPUSIM_TORCH_MINOR", torch_minor(torch[1])


def main(arguments):
    """Runs the checks that the arguments ask for; returns the exit status."""
    try:
        check_python()
        compiler = find_compiler()
        torch = find_torch() if "--torch" in arguments else None
    except EnvironmentUnfit as unfit:
        sys.stderr.write("error: {}\n".format(unfit))
        return 1
    if "--cmake" in arguments:
        for name, value in cmake_lines(torch):
            print('set({} "{}")'.format(name, value))
    if "--print-compiler" in arguments:
        print(compiler)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
