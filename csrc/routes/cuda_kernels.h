// SPDX-License-Identifier: BSD-3-Clause
// How many kernels CUDA launches for one call of an operator, where that is not one: a table of
// rows per operator, each with its source. A dry run that predicts CUDA charges so many, and shows
// them in a profile.
//
//   masked_fill, scatter ...    a copy, and the kernel that changes it
//   gradients of pools          zeros, and the kernel that adds to them
//   Fourier transforms          copies that cuFFT needs, one kernel per dimension, the scale
#pragma once

#include <ATen/core/TensorBase.h>

#include <string>
#include <string_view>
#include <vector>

#include "csrc/routes/cuda_temporaries.h"

namespace torch_npusim {

// count_kernels() says how many kernels the command stands for whose body this thread runs; call it
// with as_cuda(). `operands` are those of CudaTemporaries.
void count_kernels(std::string_view op, TensorPointers operands, const CallArguments& arguments);

// transform_must_copy() is whether a Fourier transform over `dims` copies its input: cuFFT takes
// one distance between transforms, so the other dimensions must merge into one, in the order of
// their strides. (SpectralOps.cpp: _exec_fft)
bool transform_must_copy(const at::TensorBase& self, at::IntArrayRef strides, at::IntArrayRef dims);

// A row of the table, for its page: operators with blanks between.
struct KernelsRow {
  std::string operators, kernels, source;
};
std::vector<KernelsRow> cuda_kernels();

}  // namespace torch_npusim
