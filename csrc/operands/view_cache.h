// SPDX-License-Identifier: BSD-3-Clause
// Recycled tensor objects for host views. A kernel's operands are seen through
// views that live as long as the call; making and destroying a tensor object
// for each would cost more than small kernels do, so every thread keeps a few.
// Invariant: an object is reused only when nobody else holds it and nothing was
// attached to it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include "csrc/observers/observe.h"

namespace torch_npusim {

// take_view() returns a CPU tensor with the metadata of `device` (sizes,
// strides, offset, dtype, conj and neg bits, wrapped-number flag) on the
// storage `host`.
at::Tensor take_view(const c10::TensorImpl& device, c10::StorageImpl* host);

// take_fresh_view() is the same with a storage that is the view's own, so that the device's storage
// needs no twin: for results, and for operands that are only read and alias no result. In a dry run
// it is shape_view().
at::Tensor take_fresh_view(const c10::TensorImpl& device);

// shape_view() is a meta tensor with the metadata of `tensor`, of the host or the device: a view of
// what has no memory. Its storage is `shared`, if that is given, or its own.
at::Tensor shape_view(const c10::TensorImpl& tensor, c10::Storage shared = {});

// give_view() takes it back; a view that the kernel kept lives on, and is not reused.
void give_view(at::Tensor&& view) noexcept;

// FreshView: a fresh view for the length of a scope, or the tensor itself if it is on the host, for
// a kernel that does with it what `use` says.
class FreshView {
 public:
  explicit FreshView(const at::Tensor& device, Use use = Use::reads)
      : view_(device.is_privateuseone() ? take_fresh_view(*device.unsafeGetTensorImpl()) : device) {
    note_use(device, use);
  }
  ~FreshView() { give_view(std::move(view_)); }
  FreshView(const FreshView&) = delete;
  FreshView& operator=(const FreshView&) = delete;
  at::Tensor& operator*() { return view_; }
  const at::Tensor& operator*() const { return view_; }

 private:
  at::Tensor view_;
};

}  // namespace torch_npusim
