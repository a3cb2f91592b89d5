// SPDX-License-Identifier: BSD-3-Clause
// Device tensor -> CPU view of the same bytes, and back.
#include "csrc/aten/host_view.h"

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/clone.h>
#include <ATen/quantized/QTensorImpl.h>
#include <ATen/quantized/Quantizer.h>

#include <cstring>

#include "backend/backend.h"
#include "csrc/aten/alignment.h"
#include "csrc/aten/device_empty.h"
#include "csrc/aten/fallback_stats.h"
#include "csrc/runtime/device_allocator.h"
#include "csrc/runtime/pool_allocator.h"
#include "csrc/runtime/storage.h"

namespace torch_npusim {

namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;

// The CPU storage under a view. Foreign storages (from_blob, DLPack) have no twin to keep.
c10::Storage host_storage(c10::StorageImpl* storage) {
  if (DeviceStorage* ours = as_device_storage(storage)) {
    return c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(ours->twin()));
  }
  auto* data = const_cast<void*>(storage->data());
  void* host = npusim::is_device_address(data) ? npusim::host_alias(data) : data;
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), storage->sym_nbytes(),
      c10::DataPtr(host, c10::Device(c10::kCPU)), /*allocator=*/nullptr, /*resizable=*/false));
}

bool is_compressed(const at::Tensor& tensor) {
  const at::Layout layout = tensor.layout();
  return layout == at::kSparseCsr || layout == at::kSparseCsc || layout == at::kSparseBsr ||
         layout == at::kSparseBsc;
}

void copy_bits(const c10::TensorImpl& from, c10::TensorImpl& to) {
  if (C10_UNLIKELY(from.is_conj())) to._set_conj(true);
  if (C10_UNLIKELY(from.is_neg())) to._set_neg(true);
  if (C10_UNLIKELY(from.is_wrapped_number())) to.set_wrapped_number(true);
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

at::Tensor quantized_view(const at::Tensor& tensor) {
  c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  auto quantizer = static_cast<at::QTensorImpl&>(impl).quantizer();
  TORCH_CHECK_NOT_IMPLEMENTED(
      quantizer->qscheme() == at::kPerTensorAffine,
      "npusim supports quantized tensors with the per_tensor_affine scheme; got ",
      toString(quantizer->qscheme()), ". Dequantize the tensor before the operation.");
  at::Tensor view = at::detail::make_tensor<at::QTensorImpl>(
      host_storage(impl.unsafe_storage().unsafeGetStorageImpl()),
      DispatchKeySet(DispatchKey::QuantizedCPU), impl.dtype(), quantizer);
  view.unsafeGetTensorImpl()->set_sizes_and_strides(impl.sizes(), impl.strides(),
                                                    impl.storage_offset());
  return view;
}

// The member tensors of a sparse tensor are dense: `convert` maps each of them.
template <class Convert>
at::Tensor convert_coo(const at::Tensor& tensor, DispatchKey key, const Convert& convert) {
  auto& impl = static_cast<at::SparseTensorImpl&>(*tensor.unsafeGetTensorImpl());
  at::Tensor made =
      at::detail::make_tensor<at::SparseTensorImpl>(DispatchKeySet(key), tensor.dtype());
  auto& made_impl = static_cast<at::SparseTensorImpl&>(*made.unsafeGetTensorImpl());
  made_impl.resize_(impl.sparse_dim(), impl.dense_dim(), impl.sizes());
  made_impl.set_indices_and_values_unsafe(convert(impl.indices()), convert(impl.values()));
  made_impl.set_coalesced(impl.coalesced());
  return made;
}

template <class Convert>
at::Tensor convert_compressed(const at::Tensor& tensor, DispatchKey key, c10::Device device,
                              const Convert& convert) {
  auto& impl = static_cast<at::SparseCsrTensorImpl&>(*tensor.unsafeGetTensorImpl());
  at::Tensor made = at::detail::make_tensor<at::SparseCsrTensorImpl>(DispatchKeySet(key), device,
                                                                     impl.layout(), tensor.dtype());
  auto& made_impl = static_cast<at::SparseCsrTensorImpl&>(*made.unsafeGetTensorImpl());
  made_impl.set_member_tensors(convert(impl.compressed_indices()), convert(impl.plain_indices()),
                               convert(impl.values()), impl.sizes());
  return made;
}

}  // namespace

at::Tensor host_view(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_privateuseone()) return tensor;
  c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (C10_LIKELY(impl.key_set().has_all(DispatchKeySet(DispatchKey::PrivateUse1)))) {
    return dense_view(impl);
  }
  const auto convert = [](const at::Tensor& member) { return host_view(member); };
  if (tensor.is_quantized()) return quantized_view(tensor);
  if (tensor.is_sparse()) return convert_coo(tensor, DispatchKey::SparseCPU, convert);
  if (is_compressed(tensor)) {
    return convert_compressed(tensor, DispatchKey::SparseCsrCPU, c10::kCPU, convert);
  }
  TORCH_CHECK_NOT_IMPLEMENTED(false, "npusim has no host view for tensors with the dispatch keys ",
                              impl.key_set(),
                              ". Dense, per-tensor quantized, sparse COO and sparse compressed "
                              "tensors are supported.");
}

HostCall::~HostCall() {
  if (C10_LIKELY(finished_)) return;
  // The kernel threw: a twin that it resized must point at its own storage again.
  for (const Operand& operand : operands_) {
    if (!operand.written || !operand.device.has_storage()) continue;
    if (DeviceStorage* ours = as_device_storage(operand.device.storage().unsafeGetStorageImpl())) {
      ours->twin();
    }
  }
}

at::Tensor HostCall::view(const at::Tensor& operand, bool written) {
  if (!operand.defined() || !operand.is_privateuseone()) return operand;
  for (Operand& known : operands_) {
    if (known.device.is_same(operand)) {
      known.written |= written;
      return known.view;
    }
  }
  at::Tensor view = host_view(operand);
  const bool realigned = must_realign(operand);
  if (C10_UNLIKELY(realigned)) view = at::clone(view, at::MemoryFormat::Preserve);
  operands_.push_back({operand, view, written, realigned});
  if (C10_UNLIKELY(!view.has_storage())) remember_members(operand, view);
  return view;
}

// A kernel may return a sparse operand's member, or a tensor on its storage.
void HostCall::remember_members(const at::Tensor& operand, const at::Tensor& view) {
  const auto remember = [this](const at::Tensor& device, const at::Tensor& host) {
    operands_.push_back({device, host, /*written=*/false, /*realigned=*/false});
  };
  if (operand.is_sparse()) {
    const auto& from = static_cast<at::SparseTensorImpl&>(*operand.unsafeGetTensorImpl());
    const auto& to = static_cast<at::SparseTensorImpl&>(*view.unsafeGetTensorImpl());
    remember(from.indices(), to.indices());
    remember(from.values(), to.values());
  } else if (is_compressed(operand)) {
    const auto& from = static_cast<at::SparseCsrTensorImpl&>(*operand.unsafeGetTensorImpl());
    const auto& to = static_cast<at::SparseCsrTensorImpl&>(*view.unsafeGetTensorImpl());
    remember(from.compressed_indices(), to.compressed_indices());
    remember(from.plain_indices(), to.plain_indices());
    remember(from.values(), to.values());
  }
}

void HostCall::mirror_requires_grad() {
  for (Operand& operand : operands_) {
    if (operand.device.requires_grad()) operand.view.set_requires_grad(true);
  }
}

void HostCall::finish() {
  for (const Operand& operand : operands_) {
    if (operand.written) write_back(operand);
  }
  finished_ = true;
}

void HostCall::write_back(const Operand& operand) {
  c10::TensorImpl& device = *operand.device.unsafeGetTensorImpl();
  c10::TensorImpl& view = *operand.view.unsafeGetTensorImpl();
  if (C10_UNLIKELY(!device.has_storage())) {
    if (operand.device.is_sparse()) {
      auto& to = static_cast<at::SparseTensorImpl&>(device);
      auto& from = static_cast<at::SparseTensorImpl&>(view);
      to.resize_(from.sparse_dim(), from.dense_dim(), from.sizes());
      to.set_indices_and_values_unsafe(result(from.indices()), result(from.values()));
      to.set_coalesced(from.coalesced());
    } else {
      auto& to = static_cast<at::SparseCsrTensorImpl&>(device);
      auto& from = static_cast<at::SparseCsrTensorImpl&>(view);
      to.set_member_tensors(result(from.compressed_indices()), result(from.plain_indices()),
                            result(from.values()), from.sizes());
    }
    return;
  }
  if (C10_UNLIKELY(operand.realigned)) {
    host_view(operand.device).copy_(operand.view);
    return;
  }
  c10::StorageImpl* host = view.unsafe_storage().unsafeGetStorageImpl();
  DeviceStorage* ours = as_device_storage(device.unsafe_storage().unsafeGetStorageImpl());
  npusim::alloc::Block* block = pool_block_of(host->data_ptr());
  if (C10_UNLIKELY(block != nullptr)) {
    if (ours != nullptr && ours->existing_twin() == host) {
      // The kernel grew the twin: the new block becomes the storage's own.
      auto* address = reinterpret_cast<void*>(block->address);
      ours->set_data_ptr_noswap(c10::DataPtr(address, block, &free_block_deleter,
                                             c10::Device(c10::kPrivateUse1, device_)));
      ours->set_nbytes(host->nbytes());
      host->mutable_data_ptr().release_context();
      point_twin(*host, *ours);
    } else {
      device.set_storage_keep_dtype(storage_for(operand.view));
    }
  } else if (ours != nullptr && host->nbytes() != ours->nbytes()) {
    ours->set_nbytes(host->nbytes());
  }
  if (device.sizes() != view.sizes() || device.strides() != view.strides() ||
      device.storage_offset() != view.storage_offset()) {
    device.set_sizes_and_strides(view.sizes(), view.strides(), view.storage_offset());
  }
  // Some kernels answer with a lazily conjugated tensor (linalg_lu_solve).
  if (C10_UNLIKELY(device.is_conj() != view.is_conj())) device._set_conj(view.is_conj());
  if (C10_UNLIKELY(device.is_neg() != view.is_neg())) device._set_neg(view.is_neg());
}

at::Tensor HostCall::result(const at::Tensor& host) {
  if (!host.defined() || !host.is_cpu()) return host;
  for (const Operand& operand : operands_) {
    if (operand.view.is_same(host)) return operand.device;
  }
  if (C10_LIKELY(host.layout() == at::kStrided)) return dense_result(host);
  if (host.is_sparse()) return sparse_result(host);
  return compressed_result(host);
}

at::Tensor HostCall::dense_result(const at::Tensor& host) {
  c10::TensorImpl& from = *host.unsafeGetTensorImpl();
  c10::Storage storage = storage_for(host);
  if (C10_UNLIKELY(host.is_quantized())) {
    at::Tensor made = at::detail::make_tensor<at::QTensorImpl>(
        std::move(storage), DispatchKeySet(DispatchKey::QuantizedPrivateUse1), from.dtype(),
        static_cast<at::QTensorImpl&>(from).quantizer());
    made.unsafeGetTensorImpl()->set_sizes_and_strides(from.sizes(), from.strides(),
                                                      from.storage_offset());
    return made;
  }
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), DispatchKeySet(DispatchKey::PrivateUse1), from.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(from.sizes(), from.strides(),
                                                    from.storage_offset());
  copy_bits(from, *made.unsafeGetTensorImpl());
  return made;
}

at::Tensor HostCall::sparse_result(const at::Tensor& host) {
  return convert_coo(host, DispatchKey::SparsePrivateUse1,
                     [this](const at::Tensor& member) { return result(member); });
}

at::Tensor HostCall::compressed_result(const at::Tensor& host) {
  return convert_compressed(host, DispatchKey::SparseCsrPrivateUse1,
                            c10::Device(c10::kPrivateUse1, device_),
                            [this](const at::Tensor& member) { return result(member); });
}

c10::Storage HostCall::storage_for(const at::Tensor& host) {
  c10::StorageImpl* storage = host.storage().unsafeGetStorageImpl();
  if (npusim::alloc::Block* block = pool_block_of(storage->data_ptr())) {
    // Born on the device: the storage keeps the block, the kernel's storage becomes its twin.
    auto made = c10::make_intrusive<DeviceStorage>(
        c10::StorageImpl::use_byte_size_t(), storage->sym_nbytes(),
        c10::DataPtr(reinterpret_cast<void*>(block->address), block, &free_block_deleter,
                     c10::Device(c10::kPrivateUse1, device_)),
        device_allocator(), /*resizable=*/true);
    storage->mutable_data_ptr().release_context();
    storage->set_allocator(pool_allocator_of(device_));
    point_twin(*storage, *made);
    made->adopt_twin(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage));
    adopted_.push_back({storage, c10::Storage(made)});
    return adopted_.back().device;
  }
  for (const Adopted& known : adopted_) {
    if (known.host == storage) return known.device;
  }
  for (const Operand& operand : operands_) {
    if (operand.view.has_storage() && !operand.realigned &&
        operand.view.storage().unsafeGetStorageImpl() == storage) {
      return operand.device.storage();
    }
  }
  if (storage->nbytes() == 0) return c10::Storage(make_device_storage(0, device_));
  TORCH_CHECK_NOT_IMPLEMENTED(storage->data() != nullptr, op_,
                              " returned a tensor without memory, which npusim cannot adopt");
  count_copied_result(op_);
  auto copied = make_device_storage(storage->nbytes(), device_);
  std::memcpy(npusim::host_alias(copied->mutable_data()), storage->data(), storage->nbytes());
  adopted_.push_back({storage, c10::Storage(std::move(copied))});
  return adopted_.back().device;
}

}  // namespace torch_npusim
