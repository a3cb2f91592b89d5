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
TORCH_NEEDED = "2.13"


class EnvironmentUnfit(Exception):
    """One sentence: what was found, what is needed, what to do."""


def check_python():
    """Raises EnvironmentUnfit unless this interpreter is new enough."""
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
    """Returns torch's package folder after checking its version, without importing it."""
    from importlib import metadata, util

    remedy = "install it with `pip install torch=={}.0`".format(TORCH_NEEDED)
    needs = "torch_npusim is compiled against torch {}".format(TORCH_NEEDED)
    found = list(metadata.distributions(name="torch"))
    if not found:
        raise EnvironmentUnfit(
            "{}, but {} has no torch; {}, and pass --no-build-isolation to pip.".format(
                needs, sys.executable, remedy
            )
        )
    version = found[0].version
    if not version.startswith(TORCH_NEEDED + "."):
        raise EnvironmentUnfit("{}, but torch {} was found; {}.".format(needs, version, remedy))
    return os.path.dirname(util.find_spec("torch").origin)


def cmake_lines(torch_root):
    """Yields the facts that CMakeLists.txt needs, one set() command each."""
    import sysconfig

    yield "NPUSIM_PYTHON_INCLUDE", sysconfig.get_paths()["include"]
    yield "NPUSIM_EXT_SUFFIX", sysconfig.get_config_var("EXT_SUFFIX")
    if torch_root:
        yield "NPUSIM_TORCH_ROOT", torch_root


def main(arguments):
    """Runs the checks that the arguments ask for; returns the exit status."""
    try:
        check_python()
        compiler = find_compiler()
        torch_root = find_torch() if "--torch" in arguments else None
    except EnvironmentUnfit as unfit:
        sys.stderr.write("error: {}\n".format(unfit))
        return 1
    if "--cmake" in arguments:
        for name, value in cmake_lines(torch_root):
            print('set({} "{}")'.format(name, value))
    if "--print-compiler" in arguments:
        print(compiler)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
