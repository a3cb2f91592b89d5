// SPDX-License-Identifier: BSD-3-Clause
// on_operand_device<function>(): one of torch's device-independent functions as a kernel, run with
// the device of its operands as the current one. Without it, objects that such a function makes
// without naming a device (sparse and quantized tensors) would be made for the current device.
// torch's generated kernels for CUDA have the same guard.
//
//   m.impl("clone", on_operand_device<at::native::clone_sparse>());
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <optional>

namespace torch_npusim {

namespace operand_device {

// A device that the call names wins over that of its first npusim tensor.
struct Chosen {
  std::optional<c10::Device> named;
  std::optional<c10::Device> of_tensor;

  template <class Argument>
  void look_at(const Argument&) {}
  void look_at(const std::optional<c10::Device>& device) {
    if (device.has_value()) named = device;
  }
  void look_at(const at::Tensor& tensor) {
    if (!of_tensor.has_value() && tensor.defined() && tensor.is_privateuseone()) {
      of_tensor = tensor.device();
    }
  }

  std::optional<c10::Device> device() const {
    const std::optional<c10::Device>& device = named.has_value() ? named : of_tensor;
    const bool ours = device.has_value() && device->is_privateuseone() && device->has_index();
    return ours ? device : std::nullopt;
  }
};

template <auto function, class Function = decltype(function)>
struct Guarded;
template <auto function, class Result, class... Args>
struct Guarded<function, Result (*)(Args...)> {
  static Result call(Args... args) {
    Chosen chosen;
    (chosen.look_at(args), ...);
    const c10::OptionalDeviceGuard guard(chosen.device());
    return function(std::forward<Args>(args)...);
  }
};

}  // namespace operand_device

template <auto function>
torch::CppFunction on_operand_device() {
  return torch::CppFunction(&operand_device::Guarded<function>::call);
}

}  // namespace torch_npusim
