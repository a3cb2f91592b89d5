// SPDX-License-Identifier: BSD-3-Clause
// CpuCall in a dry run: the operands' views are meta tensors, the kernel is the one that core has
// for the Meta key, which computes shapes, and the results are device tensors of these shapes.
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "backend/backend.h"
#include "csrc/observers/observe.h"
#include "csrc/operands/view_cache.h"
#include "csrc/routes/cpu_call.h"
#include "csrc/runtime/storage.h"

namespace torch_npusim {

namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;

void copy_layout(const c10::TensorImpl& from, c10::TensorImpl& to) {
  to.set_sizes_and_strides(from.sizes(), from.strides(), from.storage_offset());
  if (from.is_conj()) to._set_conj(true);
  if (from.is_neg()) to._set_neg(true);
}

at::Tensor over(c10::Storage storage, const c10::TensorImpl& like, DispatchKey key) {
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage),
                                                             DispatchKeySet(key), like.dtype());
  copy_layout(like, *made.unsafeGetTensorImpl());
  return made;
}

}  // namespace

at::Tensor CpuCall::shape_of(c10::TensorImpl& operand) {
  const DispatchKey key = operand.is_cpu() ? DispatchKey::CPU : DispatchKey::PrivateUse1;
  TORCH_CHECK_NOT_IMPLEMENTED(
      operand.key_set().has_all(DispatchKeySet(key)), op_,
      ": the sizes of sparse, nested and quantized tensors depend on values, and tensors of a dry "
      "run have none");
  c10::StorageImpl* storage = operand.unsafe_storage().unsafeGetStorageImpl();
  for (const Operand& known : operands_) {
    if (known.device->unsafe_storage().unsafeGetStorageImpl() == storage) {
      return shape_view(operand, known.view.storage());
    }
  }
  return shape_view(operand);
}

void CpuCall::resize_to(const Operand& operand) {
  c10::TensorImpl& device = *operand.device;
  const c10::TensorImpl& view = *operand.view.unsafeGetTensorImpl();
  const bool resized = device.sizes() != view.sizes() || device.strides() != view.strides() ||
                       device.storage_offset() != view.storage_offset();
  if (C10_LIKELY(!resized)) return;
  c10::StorageImpl& storage = *device.unsafe_storage().unsafeGetStorageImpl();
  const std::size_t bytes = view.storage().nbytes();
  if (bytes > storage.nbytes()) resize_device_storage(storage, bytes);
  device.set_sizes_and_strides(view.sizes(), view.strides(), view.storage_offset());
  note_use(device, storage.data(), Use::writes);
}

at::Tensor CpuCall::result_of_shape(const at::Tensor& shape) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      shape.layout() == at::kStrided && !shape.is_nested() && !shape.is_quantized(), op_,
      ": the sizes of sparse, nested and quantized tensors depend on values, and tensors of a dry "
      "run have none");
  const c10::TensorImpl& like = *shape.unsafeGetTensorImpl();
  c10::StorageImpl* storage = shape.storage().unsafeGetStorageImpl();
  for (const Operand& operand : operands_) {
    if (!operand.device->is_cpu() && operand.view.storage().unsafeGetStorageImpl() == storage) {
      return over(operand.device->storage(), like, DispatchKey::PrivateUse1);
    }
  }
  for (const Adopted& known : adopted_) {
    if (known.host == storage) return over(known.device, like, DispatchKey::PrivateUse1);
  }
  const std::size_t bytes =
      like.storage_offset() == 0
          ? at::detail::computeStorageNbytes(like.sizes(), like.strides(), like.itemsize())
          : storage->nbytes();
  c10::Storage device(make_device_storage(bytes, device_));
  at::Tensor made = over(device, like, DispatchKey::PrivateUse1);
  note_use(made, Use::writes);
  if (shape.storage().use_count() > 1) {  // another result may lie on it
    adopted_.push_back({storage, std::move(device)});
    shapes_.push_back(shape);
  }
  return made;
}

}  // namespace torch_npusim
