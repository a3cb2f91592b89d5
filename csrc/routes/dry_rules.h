// SPDX-License-Identifier: BSD-3-Clause
// Shapes in a dry run: rules for results whose size depends on values, the kernel that computes the
// shapes of all others, or a refusal by name. Strides where core's kernels for shapes have others.
#pragma once

#include <ATen/core/stack.h>

#include <string_view>

#include "csrc/launch/op_traits.h"
#include "csrc/routes/cpu_call.h"

namespace torch_npusim {

// kernel_for() is the kernel that gets the views of `call`: the CPU's, or in a dry run that of the
// Meta key. Raises NotImplementedError where a dry run cannot know the result's shape.
c10::DispatchKeySet kernel_for(const CpuCall& call, const OpTraits& traits);

// refuse_shape() raises that.
[[noreturn]] void refuse_shape(const OpTraits& traits);

// serve_by_rule() replaces the arguments on the stack, views of a dry run, by results that hold the
// share of elements that the run selects (dry_answers.h). False for an operator without a rule.
bool serve_by_rule(const OpTraits& traits, TensorPointers operands, torch::jit::Stack& stack);

// order_of_results() is the order in which CUDA's kernel allocates its results; empty: theirs.
c10::ArrayRef<std::size_t> order_of_results(std::string_view op);

// lay_out() gives a result of a dry run, the `place`th of its operator, the strides that the kernel
// gives it, where those of the Meta key's kernel are others. No memory moves.
void lay_out(const OpTraits& traits, TensorPointers operands, std::size_t place,
             const at::Tensor& result);

// indices_without_masks() is the indices of index.Tensor with every mask replaced by as many
// numbers as the run selects of it.
c10::List<std::optional<at::Tensor>> indices_without_masks(
    const c10::List<std::optional<at::Tensor>>& indices);

}  // namespace torch_npusim
