// SPDX-License-Identifier: BSD-3-Clause
// Factories: empty and empty_strided; every other factory is a composite over these two, or runs
// as a kernel on host views.
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/native/TensorIterator.h>
#include <ATen/native/UnaryOps.h>
#include <c10/core/TensorOptions.h>
#include <torch/library.h>

#include <cstdint>

#include "backend/host_layer.h"
#include "csrc/launch/launch.h"
#include "csrc/operands/device_empty.h"
#include "csrc/routes/cpu_call.h"
#include "csrc/runtime/device.h"

namespace torch_npusim {

namespace {

void check_options(std::optional<at::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK_NOT_IMPLEMENTED(layout.value_or(at::kStrided) == at::kStrided,
                              "npusim: empty() makes strided tensors, got layout ", *layout);
  TORCH_CHECK(!pin_memory.value_or(false),
              "Only dense CPU tensors can be pinned; an npusim tensor lies in device memory");
}

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout> layout, std::optional<at::Device> device,
                 std::optional<bool> pin_memory, std::optional<at::MemoryFormat> format) {
  check_options(layout, pin_memory);
  npusim::pass_host_calls(npusim::HostCall::call);
  at::Tensor made = device_empty(sizes, c10::dtype_or_default(dtype), checked_device(device),
                                 format.value_or(at::MemoryFormat::Contiguous));
  fill_if_deterministic(made);
  return made;
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                         std::optional<at::Device> device, std::optional<bool> pin_memory) {
  check_options(layout, pin_memory);
  npusim::pass_host_calls(npusim::HostCall::call);
  at::Tensor made =
      device_empty_strided(sizes, strides, c10::dtype_or_default(dtype), checked_device(device));
  fill_if_deterministic(made);
  return made;
}

// A tensor of zeros without memory, for gradients that are known to vanish. Core's ZeroTensor key
// materialises it wherever an operator does not know about it.
at::Tensor efficient_zero_tensor(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                                 std::optional<at::Layout> layout, std::optional<at::Device> device,
                                 std::optional<bool> pin_memory) {
  check_options(layout, pin_memory);
  at::native::ZeroTensorAllocator no_memory(c10::Device(c10::kPrivateUse1, checked_device(device)));
  at::Tensor zeros = at::detail::empty_generic(
      sizes, &no_memory,
      c10::DispatchKeySet({c10::DispatchKey::PrivateUse1, c10::DispatchKey::ZeroTensor}),
      c10::dtype_or_default(dtype), std::nullopt);
  return zeros;
}

// kaiser_window() is a composite whose only loop is this stub: from the numbers of arange().
void kaiser_window_kernel(at::TensorIteratorBase& iter, std::int64_t length, double beta) {
  const at::Tensor window = iter.tensor(0);
  const at::Tensor numbers = iter.tensor(1);
  const auto body = [&](c10::DeviceIndex device) {
    CpuCall call("aten::kaiser_window", device);
    at::Tensor to = call.view(window, /*written=*/true);
    at::TensorIterator host = at::TensorIterator::unary_op(to, call.view(numbers, false));
    at::native::kaiser_window_stub(c10::kCPU, host, length, beta);
    call.finish();
  };
  constexpr double kFlops = 60.0;  // an element's Bessel function is a series of about 30 terms
  launch("aten::kaiser_window", {&window, &numbers}, body, kFlops);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_efficientzerotensor", &efficient_zero_tensor);
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
}

}  // namespace torch_npusim

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(kaiser_window_stub, &torch_npusim::kaiser_window_kernel)
}
