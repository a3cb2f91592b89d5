// SPDX-License-Identifier: BSD-3-Clause
// The only factory of device tensors: kernels, results, resizing and adoption all use it, so every
// tensor's storage is a DeviceStorage, starts on a 32-byte boundary (rule A1) and knows its twin.
#pragma once

#include <ATen/core/Tensor.h>

namespace torch_npusim {

// device_empty() returns an uninitialised tensor with the strides of `format`.
// Throws c10::OutOfMemoryError.
at::Tensor device_empty(at::IntArrayRef sizes, at::ScalarType dtype, c10::DeviceIndex device,
                        at::MemoryFormat format = at::MemoryFormat::Contiguous);

at::Tensor device_empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                                at::ScalarType dtype, c10::DeviceIndex device);

// fill_if_deterministic() fills new memory with NaN or the largest integer when the user asked for
// torch.use_deterministic_algorithms with fill_uninitialized_memory.
void fill_if_deterministic(const at::Tensor& tensor);

}  // namespace torch_npusim
