// SPDX-License-Identifier: BSD-3-Clause
// The device storage, its CPU twin, and resizing.
#include "csrc/runtime/storage.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/COW.h>

#include <algorithm>
#include <array>

#include "backend/backend.h"
#include "csrc/errors.h"
#include "csrc/runtime/device_allocator.h"
#include "csrc/runtime/known_values.h"
#include "csrc/runtime/scratch_allocator.h"

namespace torch_npusim {

namespace {

c10::DataPtr alias_of(const c10::StorageImpl& storage) {
  void* device_data = const_cast<void*>(storage.data());  // NOLINT: the alias is the write path
  void* host_data = device_data == nullptr ? nullptr : npusim::kernel_alias(device_data);
  return c10::DataPtr(host_data, c10::Device(c10::kCPU));
}

// Core allocates the copy on the current device.
void materialize_on_device(c10::StorageImpl* storage) {
  const c10::DeviceGuard on_device(storage->device());
  c10::impl::cow::materialize_cow(storage);
}

// Twins that nobody needs any more, kept by each thread for its next ones: every result of a kernel
// on host views has a twin, and most are short-lived.
struct SpareTwins {
  std::array<c10::StorageImpl*, 32> twins{};
  std::size_t count = 0;
  bool closed = false;  // the thread is leaving, and storages may still be freed

  ~SpareTwins() {
    closed = true;
    while (count > 0) c10::intrusive_ptr<c10::StorageImpl>::reclaim(twins[--count]);
  }
};

thread_local SpareTwins t_spare;

c10::intrusive_ptr<c10::StorageImpl> make_twin(const c10::StorageImpl& storage) {
  c10::Allocator* allocator = scratch_allocator_of(storage.device().index());
  if (t_spare.count == 0) {
    return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(),
                                                 storage.sym_nbytes(), alias_of(storage), allocator,
                                                 /*resizable=*/storage.resizable());
  }
  c10::StorageImpl* twin = t_spare.twins[--t_spare.count];
  twin->set_allocator(allocator);
  twin->set_resizable(storage.resizable());
  point_twin(*twin, storage);
  return c10::intrusive_ptr<c10::StorageImpl>::reclaim(twin);
}

// A twin that a kernel kept, resized or attached something to is not spared.
bool is_plain(c10::intrusive_ptr<c10::StorageImpl>& twin) {
  return twin.use_count() == 1 && twin.weak_use_count() == 1 &&
         twin->pyobj_slot()->load_pyobj() == nullptr && !twin->received_cuda() &&
         !twin->has_materializer() && twin->data_ptr().get_context() == nullptr;
}

void spare_twin(c10::intrusive_ptr<c10::StorageImpl> twin) noexcept {
  SpareTwins& spare = t_spare;
  if (spare.closed || spare.count == spare.twins.size() || !is_plain(twin)) return;
  spare.twins[spare.count++] = twin.release();
}

}  // namespace

DeviceStorage::~DeviceStorage() {
  drop_twin();
  if (KnownBytes* bytes = known.load(std::memory_order_relaxed)) KnownBytesDeleter()(bytes);
}

void DeviceStorage::release_resources() {
  drop_twin();
  c10::StorageImpl::release_resources();
}

void DeviceStorage::drop_twin() noexcept {
  // The last owner drops it: nobody makes one at the same time.
  c10::StorageImpl* twin = existing_twin();
  if (twin == nullptr) return;
  twin_.store(nullptr, std::memory_order_relaxed);
  spare_twin(c10::intrusive_ptr<c10::StorageImpl>::reclaim(twin));
}

c10::StorageImpl* DeviceStorage::twin() {
  c10::StorageImpl* twin = twin_.load(std::memory_order_acquire);
  if (C10_UNLIKELY(twin == nullptr)) {
    c10::StorageImpl* made = make_twin(*this).release();
    if (twin_.compare_exchange_strong(twin, made, std::memory_order_acq_rel)) return made;
    c10::intrusive_ptr<c10::StorageImpl>::reclaim(made);  // another thread was first
    return twin;
  }
  // Core may swap or resize the data pointer of a storage behind our back.
  const void* expected = data() == nullptr ? nullptr : npusim::kernel_alias(data());
  if (C10_UNLIKELY(twin->data() != expected || twin->nbytes() != nbytes())) {
    point_twin(*twin, *this);
  }
  return twin;
}

void DeviceStorage::adopt_twin(c10::intrusive_ptr<c10::StorageImpl> twin) {
  twin_.store(twin.release(), std::memory_order_release);
}

void point_twin(c10::StorageImpl& twin, const c10::StorageImpl& storage) {
  twin.set_data_ptr_noswap(alias_of(storage));
  twin.set_nbytes(storage.nbytes());
}

c10::intrusive_ptr<c10::StorageImpl> make_device_storage(std::size_t bytes,
                                                         c10::DeviceIndex device) {
  return c10::make_intrusive<DeviceStorage>(
      c10::StorageImpl::use_byte_size_t(), c10::SymInt(static_cast<int64_t>(bytes)),
      allocate_on_device(bytes, device), device_allocator(), /*resizable=*/true);
}

void resize_device_storage(c10::StorageImpl& storage, std::size_t bytes) {
  TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable");
  const c10::DeviceIndex device = storage.device().index();
  if (bytes < storage.nbytes()) detail::g_storages_differ.store(true);
  if (C10_UNLIKELY(npusim::dry())) forget_values(storage);
  c10::DataPtr grown = allocate_on_device(bytes, device);
  const std::size_t kept_bytes = std::min(bytes, storage.nbytes());
  if (kept_bytes > 0) {
    translated([&] {
      npusim::copy(grown.get(), storage.data(), kept_bytes, npusim::current_stream(device),
                   /*blocking=*/false);
    });
  }
  storage.set_data_ptr_noswap(std::move(grown));
  storage.clear_materializer();  // a lazy copy has its own bytes now
  storage.set_nbytes(bytes);
}

namespace {

// Bytes from the start of its storage to the end of a tensor's last element.
std::size_t bytes_needed(const at::TensorBase& tensor) {
  if (tensor.numel() == 0) return 0;
  int64_t last = tensor.storage_offset();
  for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  return static_cast<std::size_t>(last + 1) * tensor.itemsize();
}

}  // namespace

namespace detail {

std::atomic<bool> g_storages_differ{false};

bool ends_within_storage(const at::TensorBase& tensor) {
  if (!tensor.defined() || !tensor.is_privateuseone() || !tensor.has_storage() ||
      tensor.layout() != at::kStrided || tensor.unsafeGetTensorImpl()->is_python_dispatch()) {
    return true;
  }
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  if (as_device_storage(storage) == nullptr) return true;  // nobody resizes the memory of others
  if (is_of_other_kind(storage->data_ptr())) return false;
  // Nested tensors have no strides, and are whole or gone.
  if (tensor.is_nested()) return storage->nbytes() > 0 || tensor.numel() == 0;
  return bytes_needed(tensor) <= storage->nbytes();
}

}  // namespace detail

void check_within_storage(const char* op, const at::TensorBase& tensor) {
  if (C10_LIKELY(within_storage(tensor))) return;
  TORCH_CHECK(!is_of_other_kind(tensor.storage().data_ptr()), op, ": ",
              npusim::dry() ? "an operand was made before the dry run began, so it has no place in "
                              "it. Make all tensors of the device within the run."
                            : "an operand was made by a dry run that has ended, so it has no "
                              "values. Use its tensors within the run.");
  TORCH_CHECK(false, op, ": an operand of shape ", tensor.sizes(), " and dtype ", tensor.dtype(),
              " ends beyond its storage, which storage.resize_() has left ",
              tensor.storage().nbytes(),
              " bytes. Resize the storage back before the tensor is used.");
}

c10::intrusive_ptr<c10::StorageImpl> lazy_clone_of(c10::StorageImpl& storage) {
  name_block_by_address(storage._mutable_data_ptr_no_checks());
  c10::intrusive_ptr<c10::StorageImpl> clone = c10::impl::cow::lazy_clone_storage(storage);
  if (clone == nullptr) return clone;
  for (c10::StorageImpl* lazy : {&storage, clone.get()}) {
    lazy->clear_materializer();
    lazy->set_materializer(&materialize_on_device);
  }
  return clone;
}

void register_storage_type() {
  c10::SetStorageImplCreate(
      c10::DeviceType::PrivateUse1,
      [](c10::StorageImpl::use_byte_size_t tag, c10::SymInt bytes, c10::DataPtr data,
         c10::Allocator* allocator, bool resizable) -> c10::intrusive_ptr<c10::StorageImpl> {
        // torch passes a pointer of no device when it wants the allocation to be made here.
        if (!data.device().is_privateuseone()) {
          data = allocator->allocate(bytes.as_int_unchecked());
        }
        return c10::make_intrusive<DeviceStorage>(tag, std::move(bytes), std::move(data), allocator,
                                                  resizable);
      });
}

}  // namespace torch_npusim
