// SPDX-License-Identifier: BSD-3-Clause
// Kernel: how an operator of your own runs on npusim. Public: add
// torch_npusim.cpp_extension.include_paths() to your include paths; there is nothing to link.
//
//   at::Tensor y = at::empty_like(x);
//   torch_npusim::Kernel kernel("mine::twice");
//   const float* in = kernel.reads<float>(x);
//   float* out = kernel.writes<float>(y);
//   kernel.launch(/*flops=*/n, [=] { for (int64_t i = 0; i < n; ++i) out[i] = 2 * in[i]; });
//
// Invariant: only the body of launch() may dereference the addresses; in host code they fault or
// race. The body captures addresses and numbers by value, never tensors, and calls no operators.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>

#include <functional>
#include <type_traits>
#include <utility>

#include "launcher.h"

namespace torch_npusim {

// KernelInterface is what torch_npusim offers to compiled extensions, as a table of functions, so
// that an extension needs its header only. `version` grows when the table changes.
struct KernelInterface {
  static constexpr std::int64_t kVersion = 3;
  std::int64_t version;
  // address() returns where kernels find the first element of a tensor of the device.
  void* (*address)(const at::TensorBase& tensor);
  // launch() checks the operands' devices, charges the modelled time and runs or queues body. Bit i
  // of `written`: the body writes to operand i; at most 64 operands are told apart.
  void (*launch)(const char* name, c10::ArrayRef<at::Tensor> operands, std::uint64_t written,
                 double flops, const std::function<void()>& body);
  // launcher() returns what launches on a device without tensors, for as long as the process
  // lives. Throws c10::Error if there is no such device.
  const DeviceLauncher& (*launcher)(int device);
};

// kernel_interface() finds the table of the torch_npusim that is loaded. Throws c10::Error when
// none is, or when it is of another version.
inline const KernelInterface& kernel_interface() {
  static const KernelInterface* const found = [] {
    const auto finder =
        c10::Dispatcher::singleton().findSchema({"npusim::_kernel_interface", /*overload=*/""});
    TORCH_CHECK(finder.has_value(),
                "torch_npusim is not loaded; import torch_npusim before running its kernels");
    const auto* table =
        reinterpret_cast<const KernelInterface*>(finder->typed<std::int64_t()>().call());
    TORCH_CHECK(table->version == KernelInterface::kVersion,
                "this extension was compiled for version ", KernelInterface::kVersion,
                " of torch_npusim's kernel interface, but version ", table->version,
                " is loaded; build it anew");
    return table;
  }();
  return *found;
}

// Kernel is one command: name its operands, then launch it once.
class Kernel {
 public:
  // `name` must be a literal: profiles and faults refer to it for as long as the process lives.
  explicit Kernel(const char* name) : name_(name) {}

  // reads() and writes() declare an operand and return the address of its first element for the
  // body. Throws c10::Error unless `tensor` is contiguous and of dtype T.
  template <class T>
  const T* reads(const at::Tensor& tensor) {
    return static_cast<const T*>(operand<T>(tensor));
  }
  template <class T>
  T* writes(const at::Tensor& tensor) {
    T* address = static_cast<T*>(operand<T>(tensor));
    if (operands_.size() <= 64) written_ |= std::uint64_t{1} << (operands_.size() - 1);
    return address;
  }

  // launch() runs body() as one command on the current stream of the operands' device. Its
  // modelled time follows from `flops` and from the bytes of all operands. Throws c10::Error when
  // the operands are on different devices; an injected fault keeps the body from running.
  template <class Body>
  void launch(double flops, Body body) const {
    static_assert(std::is_invocable_r_v<void, Body>, "body takes nothing and returns nothing");
    kernel_interface().launch(name_, operands_, written_, flops, std::move(body));
  }

 private:
  template <class T>
  void* operand(const at::Tensor& tensor) {
    TORCH_CHECK(tensor.scalar_type() == c10::CppTypeToScalarType<T>::value, name_, " expects ",
                c10::CppTypeToScalarType<T>::value, " elements, but got ", tensor.scalar_type());
    TORCH_CHECK(tensor.is_contiguous(), name_,
                " expects contiguous tensors; call .contiguous() on its operands first");
    operands_.push_back(tensor);
    return kernel_interface().address(tensor);
  }

  const char* name_;
  c10::SmallVector<at::Tensor, 6> operands_;
  std::uint64_t written_ = 0;
};

}  // namespace torch_npusim
