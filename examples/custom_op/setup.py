# SPDX-License-Identifier: BSD-3-Clause
"""Builds npusim_custom_op: `pip install --no-build-isolation .`; see docs/use/custom_op.md."""

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

from torch_npusim.cpp_extension import include_paths

kernels = CppExtension(
    "npusim_custom_op._kernels",
    ["csrc/layer_norm.cpp", "csrc/absmax.cpp"],
    include_dirs=include_paths(),
    # -fopenmp for at::parallel_for. A wheel for other machines names an architecture, not native.
    extra_compile_args=["-std=c++20", "-O3", "-g0", "-march=native", "-fopenmp"],
    extra_link_args=["-fopenmp"],
)

setup(
    name="npusim-custom-op",
    version="0.1.0",
    packages=["npusim_custom_op"],
    ext_modules=[kernels],
    cmdclass={"build_ext": BuildExtension},
)
