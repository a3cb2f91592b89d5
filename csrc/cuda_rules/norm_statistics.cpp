// SPDX-License-Identifier: BSD-3-Clause
// Statistics of norms on the stack of a call.
#include "csrc/cuda_rules/norm_statistics.h"

#include <ATen/core/Tensor.h>

#include "backend/backend.h"

namespace torch_npusim {

namespace {

bool is_gradient(const c10::FunctionSchema& schema) {
  return schema.name().find("_backward") != std::string::npos;
}

bool has_tensor(const c10::IValue& value) { return value.isTensor() && value.toTensor().defined(); }

}  // namespace

void narrow_statistics(const c10::FunctionSchema& schema, torch::jit::Stack& stack,
                       at::ScalarType dtype) {
  if (!is_gradient(schema) || npusim::dry()) return;
  const std::size_t first = stack.size() - schema.arguments().size();
  const auto argument = [&](const char* name) -> c10::IValue* {
    const std::optional<int> place = schema.argumentIndexWithName(name);
    if (!place.has_value()) return nullptr;
    c10::IValue& value = stack[first + static_cast<std::size_t>(*place)];
    return has_tensor(value) ? &value : nullptr;
  };
  for (const char* name : {"weight", "running_mean"}) {
    if (const c10::IValue* of = argument(name)) dtype = of->toTensor().scalar_type();
  }
  for (const char* name : {"mean", "rstd", "save_mean", "save_invstd", "save_var"}) {
    c10::IValue* value = argument(name);
    if (value != nullptr) *value = value->toTensor().to(dtype);
  }
}

void widen_statistics(const c10::FunctionSchema& schema, torch::jit::Stack& stack,
                      at::ScalarType narrow, at::ScalarType wide) {
  if (is_gradient(schema)) return;
  for (std::size_t i = stack.size() - schema.returns().size() + 1; i < stack.size(); ++i) {
    c10::IValue& value = stack[i];
    if (has_tensor(value) && value.toTensor().scalar_type() == narrow) {
      value = value.toTensor().to(wide);
    }
  }
}

}  // namespace torch_npusim
