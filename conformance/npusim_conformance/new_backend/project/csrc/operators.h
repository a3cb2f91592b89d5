// SPDX-License-Identifier: BSD-3-Clause
// Common parts of kernels: loops over tensors of any strides, and which operands the chip can take.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/native/CPUFallback.h>

#include <array>
#include <cstdint>
#include <initializer_list>

#include "runtime.h"

namespace mychip {

constexpr int kDimsMax = 64;     // as torch
constexpr int kOperandsMax = 4;  // the result is one of them

// Elements of up to four operands, walked together; strides are in elements.
struct Loop {
  std::int64_t sizes[kDimsMax];
  std::int64_t strides[kOperandsMax][kDimsMax];
  int dims;
};
Loop loop_over(const at::Tensor& out, std::initializer_list<at::Tensor> operands);

// Calls step(offsets) for each element, on the chip.
template <class Step>
void walk(const Loop& loop, Step step) {
  std::array<std::int64_t, kOperandsMax> offsets{};
  std::array<std::int64_t, kDimsMax> index{};
  for (int dim = 0; dim < loop.dims; ++dim) {
    if (loop.sizes[dim] == 0) return;
  }
  for (;;) {
    step(offsets);
    int dim = loop.dims - 1;
    for (; dim >= 0; --dim) {
      for (int k = 0; k < kOperandsMax; ++k) offsets[k] += loop.strides[k][dim];
      if (++index[dim] < loop.sizes[dim]) break;
      for (int k = 0; k < kOperandsMax; ++k) offsets[k] -= loop.strides[k][dim] * index[dim];
      index[dim] = 0;
    }
    if (dim < 0) return;
  }
}

// Launches a kernel, which gets a copy of `arguments`.
template <class Arguments>
void launch(const at::Tensor& out, void (*kernel)(const void*), const Arguments& arguments) {
  const c10::DeviceIndex device = out.device().index();
  check(mychip_launch(device, current_stream(device), kernel, &arguments, sizeof(Arguments)));
}

// Whether the chip computes this itself: float32, and on one device but for single numbers. Raises
// where torch would: operands on two devices, a result that overlaps with itself or with them.
bool is_for_chip(const at::Tensor& out, std::initializer_list<at::Tensor> operands);

// The operand on the device of `out`, as float32; only single numbers move.
at::Tensor there(const at::Tensor& operand, const at::Tensor& out);

// Gives the shape of a result to `out`, as torch does. In place, where `out` is `self`, it raises
// if the shape is another.
void resize_out(const at::Tensor& out, at::IntArrayRef sizes, const at::Tensor& self = {});

inline float* floats(const at::Tensor& tensor) { return tensor.mutable_data_ptr<float>(); }
inline const float* read(const at::Tensor& tensor) { return tensor.const_data_ptr<float>(); }

// What the chip does not compute: ON_CPU(add_out, self, other, alpha, out).
#define ON_CPU(op, ...) \
  at::native::call_fallback_fn<&mychip::fallback, at::_ops::op>::call(__VA_ARGS__)

}  // namespace mychip
