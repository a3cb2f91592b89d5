// SPDX-License-Identifier: BSD-3-Clause
// Nested tensors of the strided layout: one storage, and the sizes, strides and offsets of the
// tensors in it. These three are CPU tensors on every device.
#pragma once

#include <ATen/NestedTensorImpl.h>
#include <ATen/core/Tensor.h>

namespace torch_npusim {

// Jagged nested tensors are a Python class of their own, of another layout.
inline bool is_strided_nested(const at::Tensor& tensor) {
  return C10_UNLIKELY(tensor.is_nested()) && tensor.layout() == at::kStrided;
}

// nested_over() is `tensor` with another storage and dispatch key. `convert` maps each of the three
// members. The autograd key of nested tensors is their own, and does not follow from the backend's.
template <class Convert>
at::Tensor nested_over(const at::Tensor& tensor, c10::Storage storage, c10::DispatchKey key,
                       const Convert& convert) {
  const auto& impl = *at::native::get_nested_tensor_impl(tensor);
  return at::detail::make_tensor<at::native::NestedTensorImpl>(
      std::move(storage), c10::DispatchKeySet(key) | c10::autograd_nested, impl.dtype(),
      convert(impl.get_nested_sizes()), convert(impl.get_nested_strides()),
      convert(impl.get_storage_offsets()));
}

inline at::Tensor nested_over(const at::Tensor& tensor, c10::Storage storage,
                              c10::DispatchKey key) {
  return nested_over(tensor, std::move(storage), key,
                     [](const at::Tensor& member) { return member; });
}

}  // namespace torch_npusim
