// SPDX-License-Identifier: BSD-3-Clause
// Factories: empty and empty_strided; every other factory is a composite over these two, or runs
// as a kernel on host views.
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/TensorFactories.h>
#include <c10/core/TensorOptions.h>
#include <torch/library.h>

#include "csrc/operands/device_empty.h"
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
  at::Tensor made = device_empty(sizes, c10::dtype_or_default(dtype), checked_device(device),
                                 format.value_or(at::MemoryFormat::Contiguous));
  fill_if_deterministic(made);
  return made;
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                         std::optional<at::Device> device, std::optional<bool> pin_memory) {
  check_options(layout, pin_memory);
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

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_efficientzerotensor", TORCH_FN(efficient_zero_tensor));
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
}

}  // namespace torch_npusim
