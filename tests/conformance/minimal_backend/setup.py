# SPDX-License-Identifier: BSD-3-Clause
"""Builds the backend: `python setup.py build --build-lib DIR` leaves a package in DIR."""

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

setup(
    name="torch-minimal",
    version="0.1",
    packages=["torch_minimal"],
    ext_modules=[CppExtension("torch_minimal._C", ["backend.cpp"], extra_compile_args=["-O1"])],
    cmdclass={"build_ext": BuildExtension},
)
