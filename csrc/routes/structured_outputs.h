// SPDX-License-Identifier: BSD-3-Clause
// Outputs of an operator's structured class (structured.h): device tensors, and the host views of
// them that impl() writes to.
#pragma once

#include <ATen/TensorIterator.h>
#include <ATen/TensorMeta.h>

#include <array>
#include <type_traits>
#include <utility>

#include "csrc/operands/device_empty.h"
#include "csrc/operands/view_cache.h"

namespace torch_npusim {

// OnViews: one call of a structured class. meta() calls set_output_raw_strided(), which makes the
// device tensor and the view that impl() writes to; take() then gives the device tensor away.
template <class Structured, std::size_t outputs>
class OnViews final : public Structured {
 public:
  explicit OnViews(c10::DeviceIndex device) : device_(device) {}
  ~OnViews() {
    for (at::Tensor& view : views_) give_view(std::move(view));
  }

  void set_output_strided(int64_t index, at::IntArrayRef sizes, at::IntArrayRef strides,
                          at::TensorOptions options) override {
    set_output_raw_strided(index, sizes, strides, options);
  }
  void set_output_raw_strided(int64_t index, at::IntArrayRef sizes, at::IntArrayRef strides,
                              at::TensorOptions options) override {
    const auto i = static_cast<std::size_t>(index);
    const at::ScalarType dtype = c10::typeMetaToScalarType(options.dtype());
    const auto format = options.memory_format_opt().value_or(at::MemoryFormat::Contiguous);
    made_[i] = strides.empty() ? device_empty(sizes, dtype, device_, format)
                               : device_empty_strided(sizes, strides, dtype, device_);
    note_use(made_[i], Use::writes);
    views_[i] = take_fresh_view(*made_[i].unsafeGetTensorImpl());
    if constexpr (std::is_base_of_v<at::TensorIteratorBase, Structured>) {
      Structured::set_output_raw_strided(index, sizes, strides, options);
    }
  }
  const at::Tensor& maybe_get_output(int64_t index) override {
    return views_[static_cast<std::size_t>(index)];
  }

  at::Tensor take(std::size_t index) {
    c10::TensorImpl& made = *made_[index].unsafeGetTensorImpl();
    const at::Tensor& view = views_[index];
    // Losses shrink the output that meta() asked for, which keeps its storage.
    if (C10_UNLIKELY(made.sizes() != view.sizes())) made.set_sizes_contiguous(view.sizes());
    return std::move(made_[index]);
  }

 private:
  c10::DeviceIndex device_;
  std::array<at::Tensor, outputs> made_;
  std::array<at::Tensor, outputs> views_;
};

}  // namespace torch_npusim
