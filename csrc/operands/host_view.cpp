// SPDX-License-Identifier: BSD-3-Clause
// Device tensor -> CPU view of the same bytes.
//
// The trap: a view with a storage of its own shows the right bytes, but a kernel that compares
// storages (out= beside an input, an in-place operator on overlapping slices) would believe that
// nothing overlaps, and a kernel that resizes it would leave the device tensor behind. So the views
// of one DeviceStorage share its twin (csrc/runtime/storage.h). Tensors with members (sparse,
// nested, per-channel quantized) are rebuilt around views of their members.
#include "csrc/operands/host_view.h"

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/quantized/QTensorImpl.h>
#include <ATen/quantized/Quantizer.h>

#include "backend/backend.h"
#include "csrc/operands/nested_members.h"
#include "csrc/operands/quantizer.h"
#include "csrc/operands/sparse_members.h"
#include "csrc/runtime/storage.h"

namespace torch_npusim {

namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;

// The CPU storage under a view: the twin, or for foreign storages (from_blob, DLPack), which cannot
// keep one, a fresh alias that is not resizable. Host addresses (pinned memory) stay as they are.
c10::Storage host_storage(c10::StorageImpl* storage) {
  if (DeviceStorage* ours = as_device_storage(storage)) {
    return c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(ours->twin()));
  }
  auto* data = const_cast<void*>(storage->data());
  void* host = npusim::is_device_address(data) ? npusim::kernel_alias(data) : data;
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), storage->sym_nbytes(),
      c10::DataPtr(host, c10::Device(c10::kCPU)), /*allocator=*/nullptr,
      /*resizable=*/false));
}

at::Tensor dense_view(c10::TensorImpl& impl) {
  at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(
      host_storage(impl.unsafe_storage().unsafeGetStorageImpl()), DispatchKeySet(DispatchKey::CPU),
      impl.dtype());
  view.unsafeGetTensorImpl()->set_sizes_and_strides(impl.sizes(), impl.strides(),
                                                    impl.storage_offset());
  copy_bits(impl, *view.unsafeGetTensorImpl());
  return view;
}

// The scales and zero points of a per-channel quantizer are tensors on the tensor's device.
at::QuantizerPtr host_quantizer(const at::QuantizerPtr& quantizer) {
  const auto* channels = per_channel_or_null(quantizer);
  if (channels == nullptr) return quantizer;
  return at::make_per_channel_affine_quantizer(host_view(channels->scales()),
                                               host_view(channels->zero_points()), channels->axis(),
                                               channels->scalar_type());
}

at::Tensor quantized_view(const at::Tensor& tensor) {
  c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  at::Tensor view = at::detail::make_tensor<at::QTensorImpl>(
      host_storage(impl.unsafe_storage().unsafeGetStorageImpl()),
      DispatchKeySet(DispatchKey::QuantizedCPU), impl.dtype(),
      host_quantizer(static_cast<at::QTensorImpl&>(impl).quantizer()));
  view.unsafeGetTensorImpl()->set_sizes_and_strides(impl.sizes(), impl.strides(),
                                                    impl.storage_offset());
  return view;
}

}  // namespace

at::Tensor host_view(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_privateuseone()) return tensor;
  check_within_storage("a kernel", tensor);  // members of sparse tensors too
  c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (C10_LIKELY(impl.key_set().has_all(DispatchKeySet(DispatchKey::PrivateUse1)))) {
    return dense_view(impl);
  }
  const auto convert = [](const at::Tensor& member) { return host_view(member); };
  if (tensor.is_quantized()) return quantized_view(tensor);
  if (is_strided_nested(tensor)) {
    return nested_over(tensor, host_storage(impl.unsafe_storage().unsafeGetStorageImpl()),
                       DispatchKey::NestedTensorCPU);
  }
  if (tensor.is_sparse()) return convert_coo(tensor, DispatchKey::SparseCPU, convert);
  if (is_compressed(tensor)) {
    return convert_compressed(tensor, DispatchKey::SparseCsrCPU, c10::kCPU, convert);
  }
  TORCH_CHECK_NOT_IMPLEMENTED(false, "npusim has no host view for tensors with the dispatch keys ",
                              impl.key_set(),
                              ". Dense, quantized, nested, sparse COO and sparse compressed "
                              "tensors are supported.");
}

}  // namespace torch_npusim
