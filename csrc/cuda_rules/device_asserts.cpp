// SPDX-License-Identifier: BSD-3-Clause
// An assert that is late lets the call go on, with values that its kernel takes. So does a division
// by zero.
#include "csrc/cuda_rules/device_asserts.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/ge.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <vector>

#include "backend/backend.h"
#include "backend/device_loss.h"

namespace torch_npusim {

namespace {

using torch::jit::Stack;

std::atomic<DeviceAssert> g_device_assert{DeviceAssert::now};

// Whether a kernel of CUDA would find this, not the host's part of the operator: that looks at
// dimensions. `phrase` is that of the row, for what is not an index.
bool is_found_by_the_kernel(const c10::Error& error, const std::string& phrase) {
  const std::string text = error.what_without_backtrace();
  const auto says = [&](const char* words) { return text.find(words) != std::string::npos; };
  if (phrase == "{assert_msg}") return !says("Boolean value of Tensor with");
  if (!phrase.empty()) return says(phrase.c_str());
  if (says("Dimension out of range") || says("for dimension with size 0")) return false;
  return says("out of bounds") || says("out of range") || says("not in the valid range") ||
         says("invalid max index");
}

constexpr const char* kAssert = "CUDA error: device-side assert triggered\n";
constexpr int32_t kAssertCode = 710;  // cudaErrorAssert
constexpr const char* kOnCuda =
    "\nOn CUDA this is a device-side assert, reported at the next synchronisation and by every "
    "call after it (NPUSIM_DEVICE_ASSERT=late).";

// The same call with values that the kernel takes, for a result of the right shape.
void run_without_values(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                        const c10::SafeKernelFunction& kernel, bool only_indices, Stack arguments,
                        Stack* stack) {
  if (op.schema().returns().empty()) return;
  for (std::size_t i = only_indices ? 1 : 0; i < arguments.size(); ++i) {
    const auto taken = [&](const at::Tensor& tensor) {
      const bool zero =
          tensor.defined() && (!only_indices || at::isIntegralType(tensor.scalar_type(), false));
      if (!zero) return tensor;
      const bool of_zeros = only_indices || tensor.scalar_type() == at::kBool;  // a mask of nothing
      return of_zeros ? at::zeros_like(tensor) : at::ones_like(tensor);
    };
    c10::IValue& value = arguments[i];
    if (value.isTensor()) {
      value = taken(value.toTensor());
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor> item : value.toOptionalTensorList()) {
        list.push_back(item.has_value() ? std::optional<at::Tensor>(taken(*item)) : item);
      }
      value = list;
    }
  }
  stack->insert(stack->end(), arguments.begin(), arguments.end());
  kernel.callBoxed(op, keys, stack);
}

}  // namespace

void run_with_asserts(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                      const c10::SafeKernelFunction& kernel, const std::string& phrase,
                      Stack* stack, c10::DeviceIndex device) {
  const bool late = device_assert() == DeviceAssert::late && device >= 0;
  const auto count = static_cast<std::ptrdiff_t>(op.schema().arguments().size());
  const std::size_t below = stack->size() - static_cast<std::size_t>(count);
  Stack arguments;  // kept where the call is made again
  if (C10_UNLIKELY(late)) arguments.assign(stack->end() - count, stack->end());
  try {
    kernel.callBoxed(op, keys, stack);
    return;
  } catch (c10::Error& error) {
    if (!is_found_by_the_kernel(error, phrase)) throw;
    const std::string text =
        kAssert + op.schema().name() + ": " + error.what_without_backtrace() + kOnCuda;
    if (!late) {
      if (device_assert() == DeviceAssert::lasting && device >= 0) {
        npusim::lose_device(device, text, /*told=*/true);
      }
      const c10::SourceLocation here{__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
      throw c10::AcceleratorError(here, kAssertCode, text);
    }
    npusim::lose_device(device, text);
    stack->resize(below);
  }
  run_without_values(op, keys, kernel, phrase.empty(), arguments, stack);
}

namespace {

// A call that fails in its midst has written a part of out=, which may be an operand too.
void keep_from_results(const c10::OperatorHandle& op, Stack& arguments) {
  const std::vector<c10::Argument>& schema = op.schema().arguments();
  for (std::size_t out = 0; out < arguments.size(); ++out) {
    const c10::AliasInfo* info = schema[out].alias_info();
    if (info == nullptr || !info->isWrite() || !arguments[out].isTensor()) continue;
    const at::Tensor written = arguments[out].toTensor();
    for (std::size_t i = 0; i < out; ++i) {
      if (!arguments[i].isTensor() || !arguments[i].toTensor().has_storage()) continue;
      const at::Tensor read = arguments[i].toTensor();
      if (written.has_storage() && read.is_alias_of(written)) arguments[i] = at::clone(read);
    }
  }
}

// An operator that writes its first operand would meet its own results when it runs again.
bool is_in_place(const c10::OperatorHandle& op) {
  const c10::AliasInfo* info = op.schema().arguments().front().alias_info();
  return info != nullptr && info->isWrite();
}

// Whether no divisor is zero, as far as the host knows without waiting.
bool is_known_not_to_be_zero(const at::Tensor& divisor) {
  return divisor.is_cpu() && divisor.dim() == 0 && divisor.item().toBool();
}

// Where a result is not all bits but their lower half, as torch's own test of GPUs expects of
// remainders of int64 (test_fmod_remainder_by_zero_integral): where the dividend is not negative.
at::Tensor of_lower_half(const c10::OperatorHandle& op, const c10::IValue& dividend,
                         const at::Tensor& zeros) {
  const bool quotient = op.schema().name().find("div") != std::string::npos;
  if (quotient) return at::zeros_like(zeros);
  if (dividend.isTensor()) return at::logical_and(zeros, at::ge(dividend.toTensor(), 0));
  return dividend.toScalar().toLong() >= 0 ? zeros : at::zeros_like(zeros);
}

}  // namespace

void run_by_zero(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                 const c10::SafeKernelFunction& kernel, Stack* stack) {
  const auto count = static_cast<std::ptrdiff_t>(op.schema().arguments().size());
  const std::size_t below = stack->size() - static_cast<std::size_t>(count);
  Stack arguments(stack->end() - count, stack->end());
  if (is_known_not_to_be_zero(arguments[1].toTensor())) return kernel.callBoxed(op, keys, stack);
  const bool in_place = is_in_place(op) && !npusim::dry();
  at::Tensor before;
  if (in_place) {
    before = at::clone(arguments[0].toTensor());
  } else {
    keep_from_results(op, arguments);
  }
  try {
    return kernel.callBoxed(op, keys, stack);
  } catch (c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    if (text.find("ZeroDivisionError") == std::string::npos) throw;
  }
  if (in_place) arguments[0].toTensor().copy_(before);
  const at::Tensor divisor = arguments[1].toTensor();
  const at::Tensor zeros = at::eq(divisor, 0);
  arguments[1] = at::where(zeros, at::ones_like(divisor), divisor);
  const at::Tensor lower = of_lower_half(op, arguments[0], zeros);
  stack->resize(below);
  stack->insert(stack->end(), arguments.begin(), arguments.end());
  kernel.callBoxed(op, keys, stack);
  at::Tensor result = stack->back().toTensor();
  result.masked_fill_(zeros, -1);
  if (result.scalar_type() == at::kLong) result.masked_fill_(lower, 0xffffffff);
}

void set_device_assert(DeviceAssert when) noexcept { g_device_assert = when; }
DeviceAssert device_assert() noexcept { return g_device_assert; }

}  // namespace torch_npusim
