# SPDX-License-Identifier: BSD-3-Clause
"""Builds torch_mychip._C from csrc/; everything else about the package is in pyproject.toml."""

from glob import glob

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

setup(
    ext_modules=[
        CppExtension("torch_mychip._C", sorted(glob("csrc/*.cpp")), extra_compile_args=["-O2"])
    ],
    cmdclass={"build_ext": BuildExtension},
)
