// SPDX-License-Identifier: BSD-3-Clause
// Routes i and ii: torch's structured kernel classes with outputs of our own making.
//
//   route i   OnDevice<S>   elementwise, one common dtype: meta() sees the device tensors, impl()
//                           reaches a DispatchStub, whose PrivateUse1 entry (trampoline) moves the
//                           iterator's pointers to host addresses and runs the CPU loop.
//   route ii  OnViews<S>    reductions, matmul, whatever touches tensors: meta() and impl() see
//                           host views only.
//
// Invariant: an operand or dtype that a route cannot take goes to the boxed kernel, which takes
// all (run_boxed() in csrc/aten/fallback.h); results are the same bits on every route.
#pragma once

#include <ATen/TensorIterator.h>
#include <ATen/TensorMeta.h>
#include <ATen/native/DispatchStub.h>

#include <array>
#include <type_traits>
#include <utility>

#include "csrc/aten/device_empty.h"
#include "csrc/aten/host_view.h"
#include "csrc/aten/launch.h"

namespace torch_npusim {

// fast_routes() is NPUSIM_FASTPATH: false leaves the boxed kernel alone in charge.
bool fast_routes() noexcept;

inline at::Tensor structured_output(at::IntArrayRef sizes, at::IntArrayRef strides,
                                    const at::TensorOptions& options, c10::DeviceIndex device) {
  const at::ScalarType dtype = c10::typeMetaToScalarType(options.dtype());
  if (!strides.empty()) return device_empty_strided(sizes, strides, dtype, device);
  return device_empty(sizes, dtype, device,
                      options.memory_format_opt().value_or(at::MemoryFormat::Contiguous));
}

// OnDevice: one call of a TensorIterator class on device tensors. `in_place` is the tensor to write
// to, or nullptr for a new one.
template <class Structured>
class OnDevice final : public Structured {
 public:
  OnDevice(c10::DeviceIndex device, const at::Tensor* in_place)
      : device_(device), in_place_(in_place) {
    if (in_place != nullptr) output_ = *in_place;
  }

  void set_output_strided(int64_t index, at::IntArrayRef sizes, at::IntArrayRef strides,
                          at::TensorOptions options) override {
    set_output_raw_strided(index, sizes, strides, options);
  }
  void set_output_raw_strided(int64_t index, at::IntArrayRef sizes, at::IntArrayRef strides,
                              at::TensorOptions options) override {
    if (in_place_ == nullptr) {
      output_ = structured_output(sizes, strides, options, device_);
    } else {
      TORCH_CHECK(sizes == in_place_->sizes(), "Bad in-place call: input tensor size ",
                  in_place_->sizes(), " and output tensor size ", sizes, " should match");
    }
    Structured::set_output_raw_strided(index, sizes, strides, options);
  }
  const at::Tensor& maybe_get_output(int64_t) override { return output_; }

  at::Tensor take() { return std::move(output_); }

 private:
  c10::DeviceIndex device_;
  const at::Tensor* in_place_;
  at::Tensor output_;
};

// OnViews: one call of a structured class on host views; `outputs` device tensors are made.
template <class Structured, std::size_t outputs = 1>
class OnViews final : public Structured {
 public:
  explicit OnViews(c10::DeviceIndex device) : device_(device) {}

  void set_output_strided(int64_t index, at::IntArrayRef sizes, at::IntArrayRef strides,
                          at::TensorOptions options) override {
    set_output_raw_strided(index, sizes, strides, options);
  }
  void set_output_raw_strided(int64_t index, at::IntArrayRef sizes, at::IntArrayRef strides,
                              at::TensorOptions options) override {
    const auto i = static_cast<std::size_t>(index);
    made_[i] = structured_output(sizes, strides, options, device_);
    views_[i] = host_view(made_[i]);
    if constexpr (std::is_base_of_v<at::TensorIteratorBase, Structured>) {
      Structured::set_output_raw_strided(index, sizes, strides, options);
    }
  }
  const at::Tensor& maybe_get_output(int64_t index) override {
    return views_[static_cast<std::size_t>(index)];
  }

  at::Tensor take(std::size_t index = 0) { return std::move(made_[index]); }

 private:
  c10::DeviceIndex device_;
  std::array<at::Tensor, outputs> made_;
  std::array<at::Tensor, outputs> views_;
};

// use_host_addresses() points a device iterator's operands at the read-write view of their bytes.
inline void use_host_addresses(at::TensorIteratorBase& iter) {
  for (int i = 0; i < iter.ntensors(); ++i) {
    if (!iter.device(i).is_privateuseone()) continue;
    iter.unsafe_replace_operand(i, npusim::host_alias(iter.data_ptr(i)));
  }
}

// trampoline<stub>() is the PrivateUse1 entry of a DispatchStub whose kernels take an iterator.
template <auto& stub, class... Args>
void trampoline(at::TensorIteratorBase& iter, Args... args) {
  use_host_addresses(iter);
  stub(c10::kCPU, iter, args...);
}

}  // namespace torch_npusim
