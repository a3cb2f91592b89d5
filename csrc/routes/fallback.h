// SPDX-License-Identifier: BSD-3-Clause
// Route iii: any operator that has a CPU kernel, run on host views of its operands.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

namespace torch_npusim {

// cpu_fallback() is the boxed kernel of every operator that is registered nowhere else. It counts
// the call and obeys NPUSIM_FALLBACK. Raises if the CPU has no kernel either, and under the rules
// for CUDA if that has none (csrc/cuda_rules/operators_without_cuda.h).
void cpu_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack);

// serve_by_fallback() registers it by name, for the dispatch key of `m`: for operators whose
// composite would run otherwise, with other bits or not at all.
void serve_by_fallback(torch::Library& m, c10::ArrayRef<const char*> names);

// register_structured_forms() registers it for the functional and in-place forms of structured
// operators that have no kernel of their own. Call it once, after all kernels are registered.
void register_structured_forms();

}  // namespace torch_npusim
