// SPDX-License-Identifier: BSD-3-Clause
// CUDA's words where a kernel of the CPU refuses a dtype: kernels are named in such errors.
//
//   "addmm_impl_cpu_" not implemented for 'Bool'   ->   "addmm_cuda" not implemented for 'Bool'
#pragma once

#include <string>

namespace torch_npusim {

// with_cuda_types() returns a text with the types of tensors as CUDA's are called: "cudaFloatType"
// becomes "torch.cuda.FloatTensor".
std::string with_cuda_types(std::string text);

// in_cuda_words() returns the text of an error with the names that CUDA's kernels and types have.
// Other texts come back as they are.
std::string in_cuda_words(std::string text);

}  // namespace torch_npusim
