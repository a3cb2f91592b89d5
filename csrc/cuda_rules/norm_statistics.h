// SPDX-License-Identifier: BSD-3-Clause
// Norms of half precision on CUDA hand out means and deviations in float32, and take them so.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>

namespace torch_npusim {

// narrow_statistics() converts those that a gradient takes, on the stack before its call, to the
// dtype of the parameters, `dtype` without any: the CPU's kernels want that. A dry run has none.
void narrow_statistics(const c10::FunctionSchema& schema, torch::jit::Stack& stack,
                       at::ScalarType dtype);

// widen_statistics() converts results behind the first, on the stack after a call that is no
// gradient, from `narrow` to `wide`.
void widen_statistics(const c10::FunctionSchema& schema, torch::jit::Stack& stack,
                      at::ScalarType narrow, at::ScalarType wide);

}  // namespace torch_npusim
