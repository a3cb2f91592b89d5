// SPDX-License-Identifier: BSD-3-Clause
// Views of operands, results, and operands that a kernel resized.
#include "csrc/routes/cpu_call.h"

#include <ATen/native/Resize.h>
#include <ATen/ops/clone.h>
#include <ATen/quantized/QTensorImpl.h>
#include <ATen/quantized/Quantizer.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/hash.h>

#include <cstring>
#include <exception>
#include <typeinfo>

#include "backend/backend.h"
#include "csrc/observers/observe.h"
#include "csrc/operands/alignment.h"
#include "csrc/operands/device_empty.h"
#include "csrc/operands/host_view.h"
#include "csrc/operands/nested_members.h"
#include "csrc/operands/quantizer.h"
#include "csrc/operands/sparse_members.h"
#include "csrc/operands/view_cache.h"
#include "csrc/routes/fallback_stats.h"
#include "csrc/runtime/device_allocator.h"
#include "csrc/runtime/scratch_allocator.h"
#include "csrc/runtime/storage.h"

namespace torch_npusim {

namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;

at::Tensor tensor_of(c10::TensorImpl* impl) {
  return at::Tensor(
      c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(impl));
}

// A tensor that the kernel made and nobody else holds can itself become the
// result.
bool is_plain_and_ours(const at::Tensor& host) {
  const c10::TensorImpl& impl = *host.unsafeGetTensorImpl();
  return host.use_count() == 1 && host.weak_use_count() == 1 &&
         typeid(impl) == typeid(c10::TensorImpl) && impl.allow_tensor_metadata_change() &&
         impl.autograd_meta() == nullptr;
}

at::Tensor viewed(c10::TensorImpl& impl, CpuCall::Access access) {
  const bool dense = impl.key_set().has_all(DispatchKeySet(DispatchKey::PrivateUse1));
  if (C10_LIKELY(dense)) {
    if (access == CpuCall::Access::reads) return take_fresh_view(impl);
    if (auto* ours = as_device_storage(impl.unsafe_storage().unsafeGetStorageImpl())) {
      return take_view(impl, ours->twin());
    }
  }
  return host_view(tensor_of(&impl));
}

// A lazy copy takes its own bytes, and the views of its storage that were made before follow.
void make_writable(c10::TensorImpl& device) {
  if (C10_UNLIKELY(!device.has_storage())) return;
  c10::StorageImpl* storage = device.unsafe_storage().unsafeGetStorageImpl();
  if (C10_LIKELY(!storage->has_materializer())) return;
  storage->mutable_data();
  if (DeviceStorage* ours = as_device_storage(storage)) ours->twin();
}

}  // namespace

CpuCall::~CpuCall() {
  if (C10_LIKELY(finished_ && std::uncaught_exceptions() == 0)) learn();
  if (C10_UNLIKELY(!finished_ && !dry_)) {
    // The kernel threw: a twin that it resized must point at its own storage
    // again.
    for (const Operand& operand : operands_) {
      if (!operand.written || !operand.device->has_storage()) continue;
      c10::StorageImpl* storage = operand.device->unsafe_storage().unsafeGetStorageImpl();
      if (DeviceStorage* ours = as_device_storage(storage)) ours->twin();
    }
  }
  for (Operand& operand : operands_) give_view(std::move(operand.view));
}

std::uint64_t CpuCall::signature() const {
  std::uint64_t hash = c10::get_hash(op_, flags_);
  for (const Operand& operand : operands_) {
    const c10::TensorImpl& impl = *operand.device;
    hash = c10::hash_combine(hash,
                             c10::get_hash(impl.layout(), c10::typeMetaToScalarType(impl.dtype())));
    if (C10_UNLIKELY(operand.view.is_nested())) continue;  // has no sizes
    for (const int64_t size : impl.sizes()) hash = c10::hash_combine(hash, size);
    if (impl.layout() != at::kStrided) continue;
    for (const int64_t stride : impl.strides()) hash = c10::hash_combine(hash, stride);
  }
  return hash;
}

at::Tensor& CpuCall::shown(const at::Tensor& operand, bool written) {
  const bool has_a_shape =
      dry_ && operand.is_cpu() && !operand.unsafeGetTensorImpl()->is_wrapped_number();
  if (!operand.defined() || !(operand.is_privateuseone() || has_a_shape))
    return const_cast<at::Tensor&>(operand);
  c10::TensorImpl* device = operand.unsafeGetTensorImpl();
  for (Operand& known : operands_) {
    if (known.device == device) {
      if (written && !known.written) note_use(operand, Use::writes);
      if (written) dry_ ? static_cast<void>(known.written = true) : mark_written(known);
      return known.view;
    }
  }
  note_use(operand, written ? Use::writes : Use::reads);
  if (C10_UNLIKELY(dry_)) {
    at::Tensor shape = shape_of(*device);
    return operands_.emplace_back(Operand{device, std::move(shape), written, false, false}).view;
  }
  at::Tensor view = viewed(*device, access_);
  const bool realigned = must_realign(operand);
  if (C10_UNLIKELY(realigned)) view = at::clone(view, at::MemoryFormat::Preserve);
  if (C10_UNLIKELY(access_ == Access::reads_behind) && !written &&
      !view.is_non_overlapping_and_dense()) {
    view = at::clone(view, at::MemoryFormat::Contiguous);
  }
  Operand& shown = operands_.emplace_back(
      Operand{device, std::move(view), /*written=*/false, realigned, /*is_member=*/false});
  const bool dense = device->key_set().has_all(DispatchKeySet(DispatchKey::PrivateUse1));
  if (C10_LIKELY(dense)) {
    if (written) mark_written(shown);
    return shown.view;
  }
  const at::Tensor composed = shown.view;  // remembering its members moves the operands
  const std::size_t index = operands_.size() - 1;
  remember_members(*device, composed);
  if (written) mark_written(operands_[index]);
  return operands_[index].view;
}

// A kernel resizes the members of a sparse tensor in their places, or gives it others.
void CpuCall::mark_written(Operand& operand) {
  operand.written = true;
  make_writable(*operand.device);
  for (Operand* next = &operand + 1; next != operands_.end() && next->is_member; ++next) {
    next->written = true;
    make_writable(*next->device);
    if (next->device->has_storage()) {
      note_use(*next->device, next->device->unsafe_storage().data(), Use::writes);
    }
  }
}

// A kernel may return a sparse operand's member, or a tensor on its storage; the result of a kernel
// on quantized operands may have their parameters.
void CpuCall::remember_members(c10::TensorImpl& operand, const at::Tensor& view) {
  const auto remember = [&](const at::Tensor& device, const at::Tensor& host) {
    note_use(device, Use::reads);
    members_.push_back(device);
    operands_.push_back({device.unsafeGetTensorImpl(), host, /*written=*/false,
                         /*realigned=*/false, /*is_member=*/!view.is_quantized()});
  };
  if (view.is_quantized()) {
    const auto from = static_cast<at::QTensorImpl&>(operand).quantizer();
    const auto to = static_cast<at::QTensorImpl&>(*view.unsafeGetTensorImpl()).quantizer();
    const auto* channels = per_channel_or_null(from);
    const auto* shown = per_channel_or_null(to);
    if (channels == nullptr || shown == nullptr) return;
    remember(channels->scales(), shown->scales());
    remember(channels->zero_points(), shown->zero_points());
  } else if (view.is_sparse()) {
    const auto& from = static_cast<at::SparseTensorImpl&>(operand);
    const auto& to = static_cast<at::SparseTensorImpl&>(*view.unsafeGetTensorImpl());
    remember(from.indices(), to.indices());
    remember(from.values(), to.values());
  } else if (is_compressed(view)) {
    const auto& from = static_cast<at::SparseCsrTensorImpl&>(operand);
    const auto& to = static_cast<at::SparseCsrTensorImpl&>(*view.unsafeGetTensorImpl());
    remember(from.compressed_indices(), to.compressed_indices());
    remember(from.plain_indices(), to.plain_indices());
    remember(from.values(), to.values());
  }
}

void CpuCall::mirror_requires_grad() {
  for (Operand& operand : operands_) {
    if (operand.device->requires_grad()) operand.view.set_requires_grad(true);
  }
}

void CpuCall::finish() {
  // Backwards, because a sparse operand is checked against its members, which stand behind it.
  for (std::size_t i = operands_.size(); i-- > 0;) {
    if (!operands_[i].written) continue;
    C10_UNLIKELY(dry_) ? resize_to(operands_[i]) : write_back(operands_[i]);
  }
  finished_ = true;
}

void CpuCall::write_back(const Operand& operand) {
  c10::TensorImpl& device = *operand.device;
  c10::TensorImpl& view = *operand.view.unsafeGetTensorImpl();
  if (C10_UNLIKELY(!device.has_storage())) {
    if (device.layout() == at::kSparse) {
      auto& to = static_cast<at::SparseTensorImpl&>(device);
      auto& from = static_cast<at::SparseTensorImpl&>(view);
      to.raw_resize_(from.sparse_dim(), from.dense_dim(), from.sizes());
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
    host_view(tensor_of(operand.device)).copy_(operand.view);
    return;
  }
  if (C10_UNLIKELY(operand.view.is_nested())) return;  // no kernel changes its sizes or storage
  if (C10_UNLIKELY(operand.view.is_quantized())) {     // copy_() also takes the source's parameters
    auto& from = static_cast<at::QTensorImpl&>(view);
    static_cast<at::QTensorImpl&>(device).set_quantizer_(device_quantizer(from.quantizer()));
  }
  c10::StorageImpl* host = view.unsafe_storage().unsafeGetStorageImpl();
  DeviceStorage* ours = as_device_storage(device.unsafe_storage().unsafeGetStorageImpl());
  npusim::alloc::Block* block = scratch_block_of(host->data_ptr());
  const bool replaced = claim(host->data());
  if (C10_UNLIKELY(block != nullptr || replaced)) {
    if (!replaced && ours != nullptr && ours->existing_twin() == host) {
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
  const bool resized = device.sizes() != view.sizes() || device.strides() != view.strides() ||
                       device.storage_offset() != view.storage_offset();
  if (C10_UNLIKELY(resized)) {
    device.set_sizes_and_strides(view.sizes(), view.strides(), view.storage_offset());
  }
  if (C10_UNLIKELY(resized || block != nullptr || replaced)) {  // not the bytes that were shown
    note_use(device, device.unsafe_storage().data(), Use::writes);
  }
  // Some kernels answer with a lazily conjugated tensor (linalg_lu_solve).
  if (C10_UNLIKELY(device.is_conj() != view.is_conj())) device._set_conj(view.is_conj());
  if (C10_UNLIKELY(device.is_neg() != view.is_neg())) device._set_neg(view.is_neg());
}

at::Tensor CpuCall::result(at::Tensor host) {
  if (!host.defined() || !(host.is_cpu() || host.is_meta())) return host;
  for (const Operand& operand : operands_) {
    if (operand.view.is_same(host)) return tensor_of(operand.device);
  }
  if (C10_UNLIKELY(dry_)) return result_of_shape(host);
  if (C10_LIKELY(host.layout() == at::kStrided)) return dense_result(std::move(host));
  if (host.is_sparse()) return sparse_result(host);
  return compressed_result(host);
}

at::Tensor CpuCall::dense_result(at::Tensor host) {
  if (C10_UNLIKELY(host.is_quantized())) return quantized_result(host);
  if (C10_UNLIKELY(host.is_nested())) return nested_result(host);
  c10::TensorImpl& from = *host.unsafeGetTensorImpl();
  c10::Storage storage = storage_for(host);
  if (C10_LIKELY(is_plain_and_ours(host))) {
    from.set_storage_keep_dtype(std::move(storage));
    from._change_backend_component_keys(c10::Device(c10::kPrivateUse1, device_));
    return host;
  }
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), DispatchKeySet(DispatchKey::PrivateUse1), from.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(from.sizes(), from.strides(),
                                                    from.storage_offset());
  copy_bits(from, *made.unsafeGetTensorImpl());
  return made;
}

at::QuantizerPtr CpuCall::device_quantizer(const at::QuantizerPtr& quantizer) {
  const auto* channels = per_channel_or_null(quantizer);
  if (channels == nullptr) return quantizer;
  return at::make_per_channel_affine_quantizer(result(channels->scales()),
                                               result(channels->zero_points()), channels->axis(),
                                               channels->scalar_type());
}

at::Tensor CpuCall::quantized_result(const at::Tensor& host) {
  const auto& from = static_cast<at::QTensorImpl&>(*host.unsafeGetTensorImpl());
  at::Tensor made = at::detail::make_tensor<at::QTensorImpl>(
      storage_for(host), DispatchKeySet(DispatchKey::QuantizedPrivateUse1), from.dtype(),
      device_quantizer(const_cast<at::QTensorImpl&>(from).quantizer()));
  made.unsafeGetTensorImpl()->set_sizes_and_strides(from.sizes(), from.strides(),
                                                    from.storage_offset());
  return made;
}

at::Tensor CpuCall::nested_result(const at::Tensor& host) {
  c10::Storage storage = storage_for(host);
  // The members stay on the host. Those that the kernel made lie in scratch memory, and one that
  // was an operand is a view.
  const HostMemoryScope ordinary_memory;
  return nested_over(
      host, std::move(storage), DispatchKey::NestedTensorPrivateUse1, [](const at::Tensor& member) {
        const void* data = member.storage().data();
        return npusim::is_device_address(npusim::device_alias(data)) ? at::clone(member) : member;
      });
}

at::Tensor CpuCall::sparse_result(const at::Tensor& host) {
  // A sparse tensor object is made for the current device.
  const c10::DeviceGuard on_device(c10::Device(c10::kPrivateUse1, device_));
  return convert_coo(host, DispatchKey::SparsePrivateUse1,
                     [this](const at::Tensor& member) { return result(member); });
}

at::Tensor CpuCall::compressed_result(const at::Tensor& host) {
  return convert_compressed(host, DispatchKey::SparseCsrPrivateUse1,
                            c10::Device(c10::kPrivateUse1, device_),
                            [this](const at::Tensor& member) { return result(member); });
}

c10::Storage CpuCall::storage_for(const at::Tensor& host) {
  c10::StorageImpl* storage = host.storage().unsafeGetStorageImpl();
  if (npusim::alloc::Block* block = scratch_block_of(storage->data_ptr())) {
    claim(storage->data());
    // Born on the device: the storage keeps the block, the kernel's storage
    // becomes its twin.
    const bool shared = host.storage().use_count() > 1;  // another result may lie on it
    auto made = c10::make_intrusive<DeviceStorage>(
        c10::StorageImpl::use_byte_size_t(), storage->sym_nbytes(),
        c10::DataPtr(reinterpret_cast<void*>(block->address), block, &free_block_deleter,
                     c10::Device(c10::kPrivateUse1, device_)),
        device_allocator(), /*resizable=*/true);
    storage->mutable_data_ptr().release_context();
    storage->set_allocator(scratch_allocator_of(device_));
    point_twin(*storage, *made);
    made->adopt_twin(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage));
    c10::Storage device(std::move(made));
    note_use(*host.unsafeGetTensorImpl(), device.data(), Use::writes);
    if (C10_UNLIKELY(shared)) adopted_.push_back({storage, device});
    return device;
  }
  for (const Adopted& known : adopted_) {
    if (known.host == storage) return known.device;
  }
  for (const Operand& operand : operands_) {
    if (operand.view.has_storage() && !operand.realigned &&
        operand.view.storage().unsafeGetStorageImpl() == storage) {
      return operand.device->storage();
    }
  }
  if (storage->nbytes() == 0) return c10::Storage(make_device_storage(0, device_));
  TORCH_CHECK_NOT_IMPLEMENTED(storage->data() != nullptr, op_,
                              " returned a tensor without memory, which npusim cannot adopt");
  if (C10_UNLIKELY(!claim(storage->data()))) count_copied_result(op_);
  auto copied = make_device_storage(storage->nbytes(), device_);
  std::memcpy(npusim::kernel_alias(copied->mutable_data()), storage->data(), storage->nbytes());
  note_use(*host.unsafeGetTensorImpl(), copied->data(), Use::writes);
  adopted_.push_back({storage, c10::Storage(std::move(copied))});
  return adopted_.back().device;
}

}  // namespace torch_npusim
