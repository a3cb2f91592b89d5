// SPDX-License-Identifier: BSD-3-Clause
// Device-side asserts: an index out of range, which a kernel of CUDA finds and the CPU's refuses.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string>

#include "csrc/cuda_rules/cuda_rules.h"

namespace torch_npusim {

// run_with_asserts() runs an operator's kernel. An error about an index, or one that has `phrase`
// in it, becomes CUDA's: now, or at the device's next synchronisation (device_assert()).
void run_with_asserts(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                      const c10::SafeKernelFunction& kernel, const std::string& phrase,
                      torch::jit::Stack* stack, c10::DeviceIndex device);

// run_by_zero() runs an operator that divides integers. A zero among the divisors is an error of
// the CPU's kernel; on CUDA the quotient is undefined, and all bits here.
void run_by_zero(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                 const c10::SafeKernelFunction& kernel, torch::jit::Stack* stack);

}  // namespace torch_npusim
