// SPDX-License-Identifier: BSD-3-Clause
// Operators that CUDA has no kernel for although the CPU has one (NPUSIM_RULES=cuda): those of
// other libraries, registered for "CPU" alone, and those of torch that only the CPU has. Run on
// host views they would hide what CUDA says. A kernel that a library registered for "CUDA" runs:
// what it launches are operators of this device.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string>
#include <utility>
#include <vector>

namespace torch_npusim {

// An operator of torch without a kernel for CUDA, and the kind of tensors: "", "Quantized", ...
using CpuOnly = std::pair<std::string, std::string>;

// set_cpu_only() puts the rule in force, or takes it back. set_cpu_kernels() sets the patterns
// ("zz::*", fnmatch) of operators whose CPU kernels may run all the same. No other thread may call
// operators meanwhile.
void set_cpu_only(bool in_force, const std::vector<CpuOnly>& of_torch);
void set_cpu_kernels(std::vector<std::string> patterns);
bool is_cpu_only_in_force() noexcept;

// serve_as_cuda() runs the operator's kernel for CUDA and returns true, returns false where the
// CPU's may run, and raises NotImplementedError where CUDA has none. `name` is "zz::f.overload".
bool serve_as_cuda(const c10::OperatorHandle& op, const std::string& name, c10::DispatchKeySet keys,
                   torch::jit::Stack* stack);

// adopt_cuda_kernels() makes kernels for CUDA, AutogradCUDA and AutocastCUDA reachable that the
// fallback does not come to, because another kernel of the operator is nearer: for "zz::f", or for
// all operators where `name` is empty. Thread-safe.
void adopt_cuda_kernels(const std::string& name);

}  // namespace torch_npusim
