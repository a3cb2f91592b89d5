// SPDX-License-Identifier: BSD-3-Clause
// The pieces of tensors that host_view.cpp and cpu_call.cpp both convert: bits
// of dense tensors, members of sparse ones.
#pragma once

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/Tensor.h>

namespace torch_npusim {

inline void copy_bits(const c10::TensorImpl& from, c10::TensorImpl& to) {
  if (C10_UNLIKELY(from.is_conj())) to._set_conj(true);
  if (C10_UNLIKELY(from.is_neg())) to._set_neg(true);
  if (C10_UNLIKELY(from.is_wrapped_number())) to.set_wrapped_number(true);
}

inline bool is_compressed(const at::Tensor& tensor) {
  const at::Layout layout = tensor.layout();
  return layout == at::kSparseCsr || layout == at::kSparseCsc || layout == at::kSparseBsr ||
         layout == at::kSparseBsc;
}

// The member tensors of a sparse tensor are dense: `convert` maps each of them.
template <class Convert>
at::Tensor convert_coo(const at::Tensor& tensor, c10::DispatchKey key, const Convert& convert) {
  auto& impl = static_cast<at::SparseTensorImpl&>(*tensor.unsafeGetTensorImpl());
  at::Tensor made =
      at::detail::make_tensor<at::SparseTensorImpl>(c10::DispatchKeySet(key), tensor.dtype());
  auto& made_impl = static_cast<at::SparseTensorImpl&>(*made.unsafeGetTensorImpl());
  made_impl.resize_(impl.sparse_dim(), impl.dense_dim(), impl.sizes());
  made_impl.set_indices_and_values_unsafe(convert(impl.indices()), convert(impl.values()));
  made_impl.set_coalesced(impl.coalesced());
  return made;
}

template <class Convert>
at::Tensor convert_compressed(const at::Tensor& tensor, c10::DispatchKey key, c10::Device device,
                              const Convert& convert) {
  auto& impl = static_cast<at::SparseCsrTensorImpl&>(*tensor.unsafeGetTensorImpl());
  at::Tensor made = at::detail::make_tensor<at::SparseCsrTensorImpl>(
      c10::DispatchKeySet(key), device, impl.layout(), tensor.dtype());
  auto& made_impl = static_cast<at::SparseCsrTensorImpl&>(*made.unsafeGetTensorImpl());
  made_impl.set_member_tensors(convert(impl.compressed_indices()), convert(impl.plain_indices()),
                               convert(impl.values()), impl.sizes());
  return made;
}

}  // namespace torch_npusim
