// SPDX-License-Identifier: BSD-3-Clause
// Operators on a tensor's storage and metadata: set_, resize_, lazy copies, record_stream, and the
// questions whether two tensors are one view of one storage, and whether one's data may replace
// another's (so that Module.to() keeps its Parameters).
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/native/ResizeCommon.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/set_native.h>
#include <torch/library.h>

#include "csrc/operands/device_empty.h"
#include "csrc/operands/host_view.h"
#include "csrc/runtime/device_allocator.h"
#include "csrc/runtime/storage.h"

namespace torch_npusim {

namespace {

// Fills what a resize added, as CPU does, so that the deterministic mode has no blind spot.
void fill_growth(const at::Tensor& tensor, std::size_t old_bytes) {
  if (C10_LIKELY(!at::globalContext().deterministicAlgorithms() ||
                 !at::globalContext().deterministicFillUninitializedMemory()) ||
      npusim::dry()) {
    return;
  }
  at::native::fill_resize_deterministic_(host_view(tensor), static_cast<int64_t>(old_bytes));
}

void grow_storage(const at::Tensor& tensor) {
  c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (impl.numel() == 0) return;  // nothing to hold, whatever the offset
  const std::size_t needed =
      at::detail::computeStorageNbytes(impl.sizes(), impl.strides(), impl.dtype().itemsize(),
                                       static_cast<std::size_t>(impl.storage_offset()));
  c10::StorageImpl& storage = *impl.unsafe_storage().unsafeGetStorageImpl();
  if (needed > storage.nbytes()) resize_device_storage(storage, needed);
}

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef sizes,
                          std::optional<at::MemoryFormat> format) {
  c10::TensorImpl& impl = *self.unsafeGetTensorImpl();
  const std::size_t old_bytes = self.storage().nbytes();
  if (self.sizes() != sizes) {
    impl.set_sizes_contiguous(sizes);
    grow_storage(self);
  }
  if (format.has_value()) {
    TORCH_CHECK(*format != at::MemoryFormat::Preserve, "Unsupported memory format ", *format);
    impl.empty_tensor_restride(*format);
  }
  fill_growth(self, old_bytes);
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef sizes,
                        at::IntArrayRef strides) {
  at::native::checkSetStorage(self, std::move(source), offset, sizes, strides);
  c10::TensorImpl& impl = *self.unsafeGetTensorImpl();
  impl.set_storage_offset(offset);
  if (strides.data() == nullptr) {
    impl.set_sizes_contiguous(sizes);
  } else {
    impl.set_sizes_and_strides(sizes, strides);
  }
  grow_storage(self);
  return self;
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage source) {
  const auto elements = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return set_storage(self, std::move(source), 0, {elements}, {});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  if (self.unsafeGetTensorImpl() == source.unsafeGetTensorImpl()) return self;
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(),
                     source.strides());
}

at::Tensor& set_empty(at::Tensor& self) {
  return set_storage(self, c10::Storage(make_device_storage(0, self.device().index())), 0, {0}, {});
}

at::Tensor lazy_clone(const at::Tensor& self) {
  c10::TensorImpl& impl = *self.unsafeGetTensorImpl();
  c10::intrusive_ptr<c10::StorageImpl> storage =
      lazy_clone_of(*impl.unsafe_storage().unsafeGetStorageImpl());
  TORCH_CHECK(storage != nullptr,
              "_lazy_clone: the tensor's memory is not npusim's own, and its owner cannot be asked "
              "to share it; use clone()");
  at::Tensor clone = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)),
                                                              impl.key_set(), impl.dtype());
  clone.unsafeGetTensorImpl()->set_sizes_and_strides(impl.sizes(), impl.strides(),
                                                     impl.storage_offset());
  return clone;
}

void record_stream(at::Tensor& self, at::Stream stream) {
  device_allocator()->recordStream(self.storage().data_ptr(), stream);
}

// Tensors of the CPU and of npusim are both plain TensorImpls: `p.data = q` may swap them.
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  const auto plain = [](const at::Tensor& tensor) {
    return tensor.layout() == at::kStrided && !tensor.is_quantized() &&
           (tensor.is_cpu() || tensor.is_privateuseone());
  };
  return (plain(self) && plain(from)) ||
         self.unsafeGetTensorImpl()->has_compatible_shallow_copy_type(from.key_set());
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("resize_", &resize_);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_.source_Storage", &set_whole_storage);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("set_", &set_empty);
  m.impl("_lazy_clone", &lazy_clone);
  m.impl("is_set_to", &at::native::is_set_to);
  m.impl("record_stream", &record_stream);
  m.impl("_has_compatible_shallow_copy_type", &has_compatible_shallow_copy_type);
}

// deepcopy() rebuilds a quantized tensor around a copy of its storage.
TORCH_LIBRARY_IMPL(aten, QuantizedPrivateUse1, m) {
  m.impl("set_.source_Storage_storage_offset", &set_storage);
}

}  // namespace torch_npusim
