// SPDX-License-Identifier: BSD-3-Clause
// Route iii: any operator that has a CPU kernel, run on host views of its operands.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace torch_npusim {

// host_fallback() is the boxed kernel of every operator that is registered nowhere else. It counts
// the call and obeys NPUSIM_FALLBACK.
void host_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// register_structured_forms() registers it for the functional and in-place forms of structured
// operators that have no kernel of their own. Call it once, after all kernels are registered.
void register_structured_forms();

// run_boxed() is the same kernel without the policy: for operators with a kernel of their own that
// does not take every operand.
void run_boxed(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// run_boxed<at::_ops::add_Tensor>(self, other, alpha) is run_boxed() with typed arguments, for
// operators that return one tensor.
template <class Op, class... Args>
at::Tensor run_boxed(const Args&... args) {
  static const c10::OperatorHandle op =
      c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name);
  torch::jit::Stack stack;
  torch::jit::push(stack, args...);
  run_boxed(op, &stack);
  return std::move(stack.back()).toTensor();
}

}  // namespace torch_npusim
