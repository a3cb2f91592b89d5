// SPDX-License-Identifier: BSD-3-Clause
// Making device tensors.
#include "csrc/operands/device_empty.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/TensorFactories.h>
#include <c10/core/TensorImpl.h>

#include "csrc/cuda_rules/cuda_rules.h"
#include "csrc/operands/host_view.h"
#include "csrc/runtime/storage.h"

namespace torch_npusim {

namespace {

// complex32, float8, uint16 to uint64 and what torch has numbered since bfloat16.
bool is_rare(at::ScalarType dtype) { return dtype == at::kComplexHalf || dtype > at::kBFloat16; }

// Core's own factories say so on every device, and this is npusim's.
void see_rare_dtype(at::ScalarType dtype) {
  if (C10_LIKELY(!is_rare(dtype))) return;
  apply_rare_rules();
  if (dtype != at::kComplexHalf) return;
  TORCH_WARN_ONCE("ComplexHalf support is experimental and many operators don't support it yet.");
}

at::Tensor over(c10::intrusive_ptr<c10::StorageImpl> storage, caffe2::TypeMeta dtype) {
  return at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(std::move(storage)), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype);
}

}  // namespace

at::Tensor device_empty(at::IntArrayRef sizes, at::ScalarType dtype, c10::DeviceIndex device,
                        at::MemoryFormat format) {
  at::detail::check_size_nonnegative(sizes);
  see_rare_dtype(dtype);
  const caffe2::TypeMeta type = c10::scalarTypeToTypeMeta(dtype);
  const std::size_t bytes = at::detail::computeStorageNbytesContiguous(sizes, type.itemsize());
  at::Tensor tensor = over(make_device_storage(bytes, device), type);
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (sizes.size() != 1 || sizes[0] != 0) impl->generic_set_sizes_contiguous(sizes);
  if (format != at::MemoryFormat::Contiguous) impl->empty_tensor_restride(format);
  return tensor;
}

at::Tensor device_empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                                at::ScalarType dtype, c10::DeviceIndex device) {
  at::detail::check_size_nonnegative(sizes);
  see_rare_dtype(dtype);
  const caffe2::TypeMeta type = c10::scalarTypeToTypeMeta(dtype);
  const std::size_t bytes = at::detail::computeStorageNbytes(sizes, strides, type.itemsize());
  at::Tensor tensor = over(make_device_storage(bytes, device), type);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

void fill_if_deterministic(const at::Tensor& tensor) {
  if (C10_LIKELY(!at::globalContext().deterministicAlgorithms() ||
                 !at::globalContext().deterministicFillUninitializedMemory()) ||
      npusim::dry()) {
    return;
  }
  at::Tensor view = host_view(tensor);
  at::native::fill_empty_deterministic_(view);
}

}  // namespace torch_npusim
