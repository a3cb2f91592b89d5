// SPDX-License-Identifier: BSD-3-Clause
// Route iii: any operator that has a CPU kernel, run on host views of its operands.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace torch_npusim {

// host_fallback() is the boxed kernel of every operator that is registered nowhere else.
void host_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace torch_npusim
