// SPDX-License-Identifier: BSD-3-Clause
// Route iii: any operator that has a CPU kernel, run on host views of its
// operands.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace torch_npusim {

// cpu_fallback() is the boxed kernel of every operator that is registered
// nowhere else. It counts the call and obeys NPUSIM_FALLBACK.
void cpu_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// register_structured_forms() registers it for the functional and in-place
// forms of structured operators that have no kernel of their own. Call it once,
// after all kernels are registered.
void register_structured_forms();

}  // namespace torch_npusim
